"""Pieces: whatever is done to a cell, and however it is shipped, what is restored is the same."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cellstore import pieces, schema
from cellstore.changes import Changed
from cellstore.database import connect, connect_new
from cellstore.errors import CellBroken, NewerFormat
from cellstore.operations import (
    Append,
    Blob,
    DeleteBlob,
    ListBlobs,
    Operation,
    PutBlob,
    ReadBlob,
    ReadRecords,
    Replace,
)
from cellstore.records import Record
from cellstore.schema import Counters
from cellstore.transactions import run_batch

HISTORIES = int(os.environ.get("CELLSTORE_HISTORIES", "150"))
LIMIT = 2**30


@dataclass(frozen=True)
class FailingWrite:
    """Writes, and then fails: with it fails the whole commit, and its neighbours go alone."""

    operation: Any
    statements: ClassVar[int] = 2
    absent: ClassVar[None] = None

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> None:
        self.operation.apply(connection, counters)
        raise sqlite3.OperationalError("on purpose")


class Rows(NamedTuple):
    """All rows of a cell as they are stored, with their storage classes, in order of their keys."""

    records: list[Any]
    blobs: list[Any]
    marks: list[Any]
    counters: tuple[int, int]

    def above(self, floor: int) -> Rows:
        """Without the tombstones and marks that nobody needs beside a base of revision `floor`."""
        return self._replace(
            blobs=[row for row in self.blobs if row[2] is not None or row[1] > floor],
            marks=[row for row in self.marks if row[1] > floor],
        )


def rows_of(connection: sqlite3.Connection, counters: Counters) -> Rows:
    return Rows(
        connection.execute(
            "SELECT seq, pos, rev, data, typeof(data) FROM records ORDER BY seq"
        ).fetchall(),
        connection.execute(
            "SELECT key, rev, data, typeof(key), typeof(data) FROM blobs ORDER BY key"
        ).fetchall(),
        connection.execute("SELECT name, rev, typeof(name) FROM marks ORDER BY name").fetchall(),
        (counters.revision, counters.position),
    )


def served(connection: sqlite3.Connection) -> tuple[Any, ...]:
    """What clients read."""
    journal = ReadRecords(LIMIT).apply(connection, Counters())
    assert journal is None or isinstance(journal, list)
    keys = ListBlobs().apply(connection, Counters())
    blobs = [ReadBlob(key, LIMIT).apply(connection, Counters()) for key in keys]
    assert all(isinstance(blob, Blob) for blob in blobs)
    return b"".join(journal or []), keys, blobs


class Shipped(NamedTuple):
    start: int
    end: int
    packed: bytes


class Fleet:
    """A cell, its owner and its bucket: what is done, shipped and taken over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers = count()
        self.base: Shipped | None = None
        self.pieces: list[Shipped] = []
        path = self.fresh("cell")
        path.touch()
        with closing(connect_new(path)) as connection:
            schema.create(connection)
        self.open(path)
        # The owner's rows, and what it served, when it last published.
        self.published = (rows_of(self.connection, self.counters), served(self.connection))

    def fresh(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self.numbers)}.db"

    def open(self, path: Path) -> None:
        self.path = path
        self.connection = connect(path)
        self.connection.execute("PRAGMA synchronous = OFF")
        self.counters = schema.load(self.connection)

    def close(self) -> None:
        self.connection.close()

    @property
    def rev(self) -> int:
        return self.pieces[-1].end if self.pieces else self.base.end if self.base else 0

    def write(self, operations: list[Operation]) -> None:
        run_batch(self.connection, operations, self.counters)
        assert schema.scan(self.connection)[0] == self.counters.revision

    def reopen(self, clean: bool) -> None:
        """Close the cell and open it again; not `clean`: as if it had been killed."""
        if clean:
            schema.save(self.connection, self.counters)
        revision = self.counters.revision
        self.connection.close()
        self.open(self.path)
        assert self.counters.revision == revision

    def ship(self, back: int, by_scan: bool, meanwhile: list[Operation]) -> None:
        """Ship what is new, merged with the last `back` pieces, while writes go on."""
        if self.counters.revision == self.rev:
            return
        kept = self.pieces[: max(0, len(self.pieces) - back)]
        start = kept[-1].end if kept else self.base.end if self.base else 0
        changed = None if by_scan else self.counters.changes.above(start)
        packed = self.pack(start, changed, meanwhile)
        self.pieces = [*kept, packed]

    def fold(self, meanwhile: list[Operation]) -> None:
        """Ship a snapshot; it is not settled yet."""
        if self.counters.revision:
            self.base = self.pack(0, None, meanwhile)
            self.pieces = []

    def lose(self, meanwhile: list[Operation]) -> None:
        """A snapshot is made, and its record never lands."""
        published = self.published
        self.pack(0, None, meanwhile)
        self.published = published

    def settle(self) -> None:
        """The last snapshot is settled."""
        if self.base is None:
            return
        before = rows_of(self.connection, self.counters)
        pieces.prune(self.connection, self.base.end)
        self.counters.changes.trim(self.base.end)
        after = rows_of(self.connection, self.counters)
        assert after.blobs == before.above(self.base.end).blobs
        assert after.above(self.base.end) == before.above(self.base.end)
        assert schema.scan(self.connection)[0] == self.counters.revision

    def pack(self, start: int, changed: Changed | None, meanwhile: list[Operation]) -> Shipped:
        where = (self.counters.revision, self.counters.position)
        self.published = (rows_of(self.connection, self.counters), served(self.connection))
        if changed is not None:
            rows = pieces.read_changes(self.connection, changed, start)
            assert all(row[2] > start for row in rows.records)
            assert all(row[1] > start for row in rows.blobs)
            self.write(meanwhile)
            return Shipped(start, where[0], pieces.build_small(rows, where))
        spool, packed = self.fresh("spool"), self.fresh("packed")
        scan = pieces.begin_scan(self.path, spool)
        self.write(meanwhile)
        assert pieces.counters_of(scan)[0] == where[0]
        pieces.finish_scan(scan, start, where)
        pieces.pack(spool, packed)
        assert not spool.exists()
        return Shipped(start, where[0], packed.read_bytes())

    def restore(self) -> Path:
        """A new owner's copy, compared with the last owner's when it published."""
        path, piece_path, packed = self.fresh("copy"), self.fresh("piece"), self.fresh("packed")
        path.touch()
        if self.base is None:
            pieces.new_copy(path)
        else:
            packed.write_bytes(self.base.packed)
            pieces.unpack(packed, path)
        with closing(connect_new(path)) as connection:
            for piece in self.pieces:
                piece_path.write_bytes(pieces.unpack_bytes(piece.packed))
                pieces.apply_piece(connection, piece_path)
        pieces.verify(path, self.rev)
        assert path.read_bytes()[18:20] == b"\x01\x01"  # No write-ahead log.
        assert not list(self.folder.glob(f"{path.name}-*"))
        rows, answers = self.published
        with closing(connect_new(path)) as connection:
            counters = schema.load(connection)
            assert counters.saved
            restored = rows_of(connection, counters)
            # A scan for a piece from revision 0 leaves tombstones out, as one for a snapshot does.
            pruned = max((mark[1] for mark in restored.marks if mark[0] == b"pruned"), default=0)
            floor = max(self.base.end if self.base else 0, pruned)
            assert restored.above(floor) == rows.above(floor)
            assert served(connection) == answers
            # Also when the saved counters are gone after a first write that changed nothing.
            revision, position = schema.scan(connection)
            assert revision == self.rev
            assert position <= counters.position
        return path

    def take_over(self) -> None:
        """Another owner goes on from what was published."""
        path = self.restore()
        self.connection.close()
        self.open(path)


SEQS = st.sampled_from([0, 1, 2, 3, 4, 2**63 - 1])
TEXTS = st.sampled_from([b"1", b"22", '"ü😀"'.encode(), b"x" * 3000])
KEYS = st.sampled_from(["a", "lease.json", "dir/b", "ü", "%", "nul\0"])
DATA = st.sampled_from([b"", b"1", b"\xff\x00", b"y" * 5000])
RECORDS = st.builds(Record, SEQS, TEXTS)
JOURNALS = st.lists(RECORDS, max_size=4, unique_by=lambda record: record.seq)
WRITES = st.one_of(
    st.builds(Append, RECORDS),
    st.builds(Append, RECORDS),
    st.builds(Replace, JOURNALS),
    st.builds(PutBlob, KEYS, DATA),
    st.builds(DeleteBlob, KEYS),
)
BATCHES = st.lists(st.one_of(WRITES, WRITES, st.builds(FailingWrite, WRITES)), max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("write"), BATCHES.filter(bool)),
    st.tuples(st.just("write"), BATCHES.filter(bool)),
    st.tuples(st.just("ship"), st.integers(0, 3), st.booleans(), BATCHES),
    st.tuples(st.just("fold"), BATCHES),
    st.tuples(st.just("lose"), BATCHES),
    st.tuples(st.just("settle")),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("restore")),
    st.tuples(st.just("take_over")),
)


@settings(max_examples=HISTORIES, deadline=None)
@given(steps=st.lists(STEPS, min_size=1, max_size=40))
def test_what_is_restored_is_what_was_published(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder))
        with closing(fleet):
            for name, *arguments in steps:
                getattr(fleet, name)(*arguments)
            fleet.ship(0, False, [])
            fleet.restore()


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Fleet]:
    with closing(Fleet(tmp_path)) as fleet:
        fleet.write(
            [Append(Record(1, b'{"seq":1}')), PutBlob("a", b"\x00\xff"), PutBlob("b", b"2")]
        )
        fleet.write([DeleteBlob("b")])
        yield fleet


def piece_of(fleet: Fleet) -> bytes:
    fleet.ship(0, False, [])
    return fleet.pieces[-1].packed


def test_a_piece_is_a_database_like_a_cell(cell: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "piece.db"
    path.write_bytes(zstandard.decompress(piece_of(cell)))
    with closing(sqlite3.connect(path)) as piece, closing(sqlite3.connect(cell.path)) as whole:
        tables = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
        assert piece.execute(tables).fetchall() == whole.execute(tables).fetchall()
        for pragma in ("application_id", "user_version"):
            assert piece.execute(f"PRAGMA {pragma}").fetchone() == (
                whole.execute(f"PRAGMA {pragma}").fetchone()
            )
        assert piece.execute("SELECT * FROM records").fetchall() == [(1, 0, 1, '{"seq":1}')]
        assert piece.execute("SELECT * FROM blobs ORDER BY key").fetchall() == [
            ("a", 2, b"\x00\xff"),
            ("b", 4, None),
        ]
        assert piece.execute("SELECT * FROM counters").fetchall() == [(4, 1)]


def test_the_same_rows_make_the_same_bytes(cell: Fleet) -> None:
    rows = pieces.read_changes(cell.connection, Changed([1], ["a", "b", "never"], 0), 0)
    assert (len(rows.records), len(rows.blobs), len(rows.marks)) == (1, 2, 0)
    assert pieces.build_small(rows, (4, 1)) == pieces.build_small(rows, (4, 1))


def test_only_what_is_newer_is_read_whatever_is_named(cell: Fleet) -> None:
    rows = pieces.read_changes(cell.connection, Changed([1], ["a", "b", "never"], 0), 2)
    assert rows == ([], [(b"b", 4, None)], [])
    rows = pieces.read_changes(cell.connection, Changed([1], ["a"], 0), 1)
    assert rows == ([], [(b"a", 2, b"\x00\xff")], [])


def test_a_small_piece_may_hold_a_replaced_journal(cell: Fleet, tmp_path: Path) -> None:
    path, copy = tmp_path / "piece.db", tmp_path / "copy.db"
    cell.ship(0, False, [])
    cell.write([Replace([Record(7, b"7"), Record(6, b"6")])])
    rows = pieces.read_changes(cell.connection, Changed([6, 7], [], 0), 4)
    assert rows.marks == [(b"records", 5)]
    pieces.new_copy(copy)
    with closing(connect_new(copy)) as connection:
        for packed in (cell.pieces[0].packed, pieces.build_small(rows, (5, 2))):
            path.write_bytes(pieces.unpack_bytes(packed))
            pieces.apply_piece(connection, path)
        assert rows_of(connection, schema.load(connection)) == (
            rows_of(cell.connection, cell.counters)
        )


def test_a_snapshot_holds_what_lives(cell: Fleet) -> None:
    cell.write([Replace([Record(7, b"7")]), DeleteBlob("a")])
    cell.fold([])
    with closing(connect_new(cell.restore())) as copy:
        rows = rows_of(copy, schema.load(copy))
    assert [row[:3] for row in rows.records] == [(7, 0, 5)]
    assert rows.blobs == []
    assert rows.marks == [(b"pruned", 6, b"text")]


def test_a_revision_whose_tombstone_was_pruned_is_not_given_out_again(cell: Fleet) -> None:
    cell.fold([])
    cell.settle()
    cell.reopen(clean=False)
    assert cell.counters.revision == 4
    # Nor in a copy, whose saved counters go with a first write that changes nothing.
    cell.take_over()
    cell.write([PutBlob("a", b"\x00\xff")])
    assert not cell.counters.saved
    cell.reopen(clean=False)
    assert cell.counters.revision == 4


def test_pruning_leaves_saved_counters_right_and_writes_only_what_it_must(cell: Fleet) -> None:
    cell.fold([])
    schema.save(cell.connection, cell.counters)
    before = cell.connection.total_changes
    pieces.prune(cell.connection, 3)
    assert cell.connection.total_changes == before
    pieces.prune(cell.connection, 4)
    assert cell.connection.total_changes > before
    cell.connection.close()
    cell.open(cell.path)
    assert cell.counters == Counters(4, 1, saved=True)
    assert cell.connection.execute("SELECT key FROM blobs").fetchall() == [(b"a",)]


def test_what_came_after_the_base_is_not_pruned(cell: Fleet) -> None:
    cell.write([Replace([]), DeleteBlob("a")])
    pieces.prune(cell.connection, 4)
    rows = rows_of(cell.connection, cell.counters)
    assert [row[:3] for row in rows.blobs] == [(b"a", 6, None)]
    assert [row[:2] for row in rows.marks] == [(b"pruned", 4), (b"records", 5)]
    pieces.prune(cell.connection, 5)
    rows = rows_of(cell.connection, cell.counters)
    assert [row[:3] for row in rows.blobs] == [(b"a", 6, None)]
    assert [row[:2] for row in rows.marks] == [(b"pruned", 5)]


def test_a_scan_sees_its_instant_and_hinders_nobody(cell: Fleet, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    scan = pieces.begin_scan(cell.path, spool)
    cell.write([Append(Record(2, b"2")), Replace([])])
    cell.connection.close()
    # Whoever closes it last tidies up.
    assert cell.path.with_name(cell.path.name + "-wal").exists()
    pieces.finish_scan(scan, 2, (4, 1))
    assert not cell.path.with_name(cell.path.name + "-wal").exists()
    with closing(sqlite3.connect(spool)) as piece:
        assert piece.execute("SELECT count(*) FROM records").fetchone() == (0,)
        assert piece.execute("SELECT key, rev FROM blobs").fetchall() == [("b", 4)]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("spool")] == ["spool"]


def test_a_closed_cell_is_scanned_and_left_closed(cell: Fleet, tmp_path: Path) -> None:
    cell.connection.close()
    scan = pieces.begin_scan(cell.path, tmp_path / "spool")
    where = pieces.counters_of(scan)
    assert where == (4, 1)
    pieces.finish_scan(scan, 0, where)
    pieces.verify(tmp_path / "spool", 4)
    assert sorted(tmp_path.iterdir()) == [cell.path, tmp_path / "spool"]


def test_a_scan_of_what_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        pieces.begin_scan(tmp_path / "absent.db", tmp_path / "spool")
    assert list(tmp_path.iterdir()) == []


def test_what_changed_is_measured(cell: Fleet) -> None:
    assert pieces.measure(cell.connection, 0) == len(b'{"seq":1}') + 2
    assert pieces.measure(cell.connection, 1) == 2
    assert pieces.measure(cell.connection, 4) == 0


def test_large_files_are_packed_and_unpacked_in_parts(tmp_path: Path) -> None:
    spool, packed, path = tmp_path / "spool", tmp_path / "packed", tmp_path / "copy"
    data = os.urandom(3_000_000) + bytes(50_000_000)
    spool.write_bytes(data)
    result = pieces.pack(spool, packed)
    assert result == (packed.stat().st_size, hashlib.sha256(packed.read_bytes()).hexdigest())
    assert not spool.exists()
    pieces.unpack(packed, path)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:0],
        lambda data: data[:3],
        lambda data: data[:20],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-20],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"no zstd" + data,
        lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
    ],
)
def test_damage_is_seen_when_it_is_unpacked(
    damage: Callable[[bytes], bytes], cell: Fleet, tmp_path: Path
) -> None:
    data = damage(piece_of(cell))
    with pytest.raises(CellBroken):
        pieces.unpack_bytes(data)
    (tmp_path / "packed").write_bytes(data)
    with pytest.raises(CellBroken):
        pieces.unpack(tmp_path / "packed", tmp_path / "copy")


@pytest.mark.parametrize(
    ("spoil", "error", "reason"),
    [
        ("PRAGMA application_id = 1", CellBroken, "application id is wrong"),
        ("PRAGMA user_version = 2", NewerFormat, "format 2"),
        ("DELETE FROM counters", CellBroken, "where it ends"),
        ("INSERT INTO counters VALUES (9, 9)", CellBroken, "where it ends"),
        ("DROP TABLE marks", CellBroken, "no such table"),
        ("ALTER TABLE records DROP COLUMN pos", CellBroken, "pos"),
    ],
)
def test_a_bad_piece_changes_nothing(
    spoil: str, error: type[Exception], reason: str, cell: Fleet, tmp_path: Path
) -> None:
    path, copy = tmp_path / "piece.db", tmp_path / "copy.db"
    path.write_bytes(pieces.unpack_bytes(piece_of(cell)))
    with closing(sqlite3.connect(path, isolation_level=None)) as piece:
        piece.execute(spoil)
    pieces.new_copy(copy)
    with closing(connect_new(copy)) as connection:
        with pytest.raises(error, match=reason):
            pieces.apply_piece(connection, path)
        assert rows_of(connection, schema.load(connection)) == ([], [], [], (0, 0))
        path.write_bytes(b"no database" * 1000)
        with pytest.raises(CellBroken, match="cannot be applied"):
            pieces.apply_piece(connection, path)
        path.unlink()
        with pytest.raises(sqlite3.OperationalError):
            pieces.apply_piece(connection, path)
        assert not path.exists()


def test_a_full_disk_is_not_the_piece_s_fault(cell: Fleet, tmp_path: Path) -> None:
    cell.write([PutBlob("large", os.urandom(100_000))])
    path, copy = tmp_path / "piece.db", tmp_path / "copy.db"
    path.write_bytes(pieces.unpack_bytes(piece_of(cell)))
    pieces.new_copy(copy)
    with closing(connect_new(copy)) as connection:
        connection.execute("PRAGMA max_page_count = 10")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            pieces.apply_piece(connection, path)
        connection.execute("PRAGMA max_page_count = 1000000")
        pieces.apply_piece(connection, path)
    pieces.verify(copy, 5)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("UPDATE counters SET revision = 5", "says revision 5, not 4"),
        ("DELETE FROM counters", "does not say where it stands"),
        ("UPDATE records SET rev = 5", "rows past revision 4"),
        ("UPDATE records SET pos = 1", "rows past revision 4"),
        ("PRAGMA application_id = 1", "not a cell"),
        ("PRAGMA user_version = 2", "format 2"),
        ("DROP TABLE counters", "no such table"),
    ],
)
def test_a_copy_that_is_not_whole_is_refused(spoil: str, reason: str, cell: Fleet) -> None:
    cell.fold([])
    path = cell.restore()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(spoil)
    with pytest.raises(CellBroken, match=reason):
        pieces.verify(path, 4)


def test_a_damaged_copy_is_refused(cell: Fleet) -> None:
    cell.write([Append(Record(n, b"x" * 3000)) for n in range(20)])
    cell.fold([])
    path = cell.restore()
    data = bytearray(path.read_bytes())
    data[-4096:] = bytes(4096)
    path.write_bytes(data)
    with pytest.raises(CellBroken, match="damaged"):
        pieces.verify(path, cell.rev)
    path.write_bytes(data[:-4096])
    with pytest.raises(CellBroken):
        pieces.verify(path, cell.rev)
    path.write_bytes(b"")
    with pytest.raises(CellBroken):
        pieces.verify(path, cell.rev)
