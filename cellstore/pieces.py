"""Pieces of a cell: what changed in it after some revision, as a small database, compressed.

A piece (a delta, a segment or a snapshot) has the tables of a cell and one row in `counters`, which
says where the cell stood when the piece was read. So `zstd -d` and `sqlite3` read it. It is applied
in this order: its mark, its tombstones, its rows. Everything here blocks. See
docs/storage-format.md.

A snapshot, which goes back to revision 0, holds what lives and no tombstones; its mark `pruned`
stands for them. That is also how `prune` leaves the cell itself once the snapshot counts.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import zstandard

from cellstore import schema
from cellstore.changes import Changed
from cellstore.errors import CellBroken, NewerFormat
from cellstore.schema import Counters

_LEVEL = 3
_CHUNK = 1024 * 1024

# The smallest pieces are smallest with it, and others no larger by more than a fiftieth.
_SMALL_PAGE = 1024

# Up to this many bytes, checking indexes against their tables too takes no time worth saving.
_THOROUGH = 16 * 1024 * 1024

# What SQLite says of a file that is at fault, rather than the disk that it lies on.
_FAULTY = {
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}

_COPY_CHANGES = (
    "INSERT INTO spool.records SELECT seq, pos, rev, data FROM main.records WHERE rev > :above",
    "INSERT INTO spool.blobs SELECT key, rev, data FROM main.blobs WHERE rev > :above",
    "INSERT INTO spool.marks SELECT name, rev FROM main.marks WHERE rev > :above",
)

_COPY_ALL = (
    "INSERT INTO spool.records SELECT seq, pos, rev, data FROM main.records",
    "INSERT INTO spool.blobs SELECT key, rev, data FROM main.blobs WHERE data IS NOT NULL",
    "INSERT INTO spool.marks VALUES ('pruned', :revision)",
)

_APPLY = (
    # Of the records before a replaced journal, none is left.
    "DELETE FROM main.records WHERE rev < (SELECT rev FROM piece.marks WHERE name = 'records')",
    "INSERT OR REPLACE INTO main.marks SELECT name, rev FROM piece.marks",
    "INSERT OR REPLACE INTO main.blobs (key, rev, data) SELECT key, rev, data FROM piece.blobs",
    "INSERT OR REPLACE INTO main.records SELECT seq, pos, rev, data FROM piece.records",
    "DELETE FROM main.counters",
    "INSERT INTO main.counters SELECT revision, position FROM piece.counters",
)


class Rows(NamedTuple):
    """Rows of a cell, texts as their UTF-8 bytes.

    Records are (seq, pos, rev, data); blobs (key, rev, data), a tombstone's data None; marks
    (name, rev).
    """

    records: list[tuple[int, int, int, bytes]]
    blobs: list[tuple[bytes, int, bytes | None]]
    marks: list[tuple[bytes, int]]


class Packed(NamedTuple):
    """The size in bytes and the SHA-256 (lowercase hex) of a compressed piece."""

    size: int
    sha256: str


def read_changes(connection: sqlite3.Connection, changed: Changed, above: int) -> Rows:
    """The rows after revision `above`, of which `changed` names all. Between two transactions."""
    execute = connection.execute
    records = [
        row
        for seq in changed.seqs
        for row in execute(
            "SELECT seq, pos, rev, data FROM records WHERE seq = ? AND rev > ?", (seq, above)
        )
    ]
    blobs = [
        row
        for key in changed.keys
        for row in execute(
            "SELECT key, rev, data FROM blobs WHERE key = ? AND rev > ?", (key, above)
        )
    ]
    marks = execute("SELECT name, rev FROM marks WHERE rev > ?", (above,)).fetchall()
    return Rows(records, blobs, marks)


def read_all(connection: sqlite3.Connection) -> Rows:
    """All rows of a small cell. Raises sqlite3.Error."""
    return Rows(
        connection.execute("SELECT seq, pos, rev, data FROM records").fetchall(),
        connection.execute("SELECT key, rev, data FROM blobs").fetchall(),
        connection.execute("SELECT name, rev FROM marks").fetchall(),
    )


def measure(connection: sqlite3.Connection, above: int) -> int:
    """How many bytes the texts and blobs after revision `above` hold, by a scan of the tables."""
    size: int = connection.execute(
        "SELECT (SELECT ifnull(sum(length(CAST(data AS BLOB))), 0) FROM records WHERE rev > :above)"
        " + (SELECT ifnull(sum(length(data)), 0) FROM blobs WHERE rev > :above)",
        {"above": above},
    ).fetchone()[0]
    return size


def build_small(rows: Rows, counters: tuple[int, int]) -> bytes:
    """Pack a few rows in memory. `counters` are the cell's revision and position with them."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as piece:
        piece.deserialize(_EMPTY)
        piece.execute("BEGIN")
        piece.executemany("INSERT INTO records VALUES (?, ?, ?, CAST(? AS TEXT))", rows.records)
        piece.executemany("INSERT INTO blobs VALUES (CAST(? AS TEXT), ?, ?)", rows.blobs)
        piece.executemany("INSERT INTO marks VALUES (CAST(? AS TEXT), ?)", rows.marks)
        piece.execute("INSERT INTO counters VALUES (?, ?)", counters)
        piece.execute("COMMIT")
        image = piece.serialize()
    return _compressor().compress(image)


def begin_scan(path: Path, spool: Path) -> sqlite3.Connection:
    """Take a snapshot of the cell at `path`, to be copied to the new file `spool`.

    Call it in the cell's own thread: then no write is under way and its counters are those of the
    snapshot. `finish_scan` may follow in any thread, and must before the cell is moved: whoever
    closes a database last tidies up beside it. Raises sqlite3.Error.
    """
    spool.write_bytes(_EMPTY_LARGE)
    try:
        connection = connect_beside(path, "rw")
        try:
            connection.execute("ATTACH ? AS spool", (_uri(spool, "rw"),))
            connection.execute("PRAGMA spool.journal_mode = OFF")
            connection.execute("PRAGMA spool.synchronous = OFF")
            connection.execute("BEGIN")
            # The snapshot is taken by the first read.
            connection.execute("SELECT 1 FROM main.counters").fetchone()
        except BaseException:
            connection.close()
            raise
    except BaseException:
        spool.unlink()
        raise
    return connection


def counters_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Revision and position of the cell that a scan was begun of. Raises CellBroken."""
    counters = schema.load(connection)
    return counters.revision, counters.position


def finish_scan(connection: sqlite3.Connection, above: int, counters: tuple[int, int]) -> None:
    """Copy what changed after revision `above`, or with 0 a snapshot, and close the connection.

    `counters` are the cell's revision and position when the scan was begun. Raises sqlite3.Error;
    the connection is closed either way.
    """
    with closing(connection):
        for statement in _COPY_CHANGES if above else _COPY_ALL:
            connection.execute(statement, {"above": above, "revision": counters[0]})
        connection.execute("INSERT INTO spool.counters VALUES (?, ?)", counters)
        connection.execute("COMMIT")


def pack(spool: Path, packed: Path) -> Packed:
    """Compress `spool` into `packed`, a part at a time, and delete it. Raises OSError."""
    digest = hashlib.sha256()
    size = 0
    with spool.open("rb") as source, packed.open("wb") as target:
        length = spool.stat().st_size
        with _compressor().stream_reader(source, size=length) as reader:
            while chunk := reader.read(_CHUNK):
                digest.update(chunk)
                size += target.write(chunk)
    spool.unlink()
    return Packed(size, digest.hexdigest())


def unpack(packed: Path, path: Path) -> None:
    """Decompress the file `packed` into `path`, a part at a time. Raises CellBroken, OSError."""
    with packed.open("rb") as source, path.open("wb") as target:
        try:
            length = zstandard.get_frame_parameters(source.read(32)).content_size
            source.seek(0)
            with zstandard.ZstdDecompressor().stream_reader(source) as reader:
                while chunk := reader.read(_CHUNK):
                    target.write(chunk)
        except zstandard.ZstdError as fault:
            raise CellBroken(f"a piece of it is not zstd: {fault}") from None
        # The reader takes a file that was cut off for one that ends.
        if target.tell() != length:
            raise CellBroken(f"a piece of it ends after {target.tell()} bytes, not {length}")


def unpack_bytes(packed: bytes) -> bytes:
    """Decompress a small piece in memory. Raises CellBroken."""
    try:
        return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as fault:
        raise CellBroken(f"a piece of it is not zstd: {fault}") from None


def new_copy(path: Path) -> None:
    """Make the empty cell that the first piece is applied to. Raises sqlite3.Error."""
    path.touch()
    with closing(connect_beside(path, "rw")) as connection:
        schema.create(connection)
        schema.save(connection, Counters())


def apply_piece(connection: sqlite3.Connection, piece_path: Path) -> None:
    """Bring a copy up to where the decompressed piece ends. The connection takes URIs.

    Raises CellBroken or NewerFormat for a bad piece, and sqlite3.Error for the disk; the copy is
    as before then.
    """
    try:
        connection.execute("ATTACH ? AS piece", (_uri(piece_path, "ro&immutable=1"),))
        try:
            _check_piece(connection)
            connection.execute("BEGIN IMMEDIATE")
            for statement in _APPLY:
                connection.execute(statement)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("DETACH piece")
    except sqlite3.Error as fault:
        if getattr(fault, "sqlite_errorcode", 0) & 0xFF in _FAULTY:
            raise CellBroken(f"a piece of it cannot be applied: {fault}") from None
        raise


def verify(path: Path, rev: int) -> None:
    """Raise CellBroken unless the closed file at `path` is a whole cell of revision `rev`."""
    check = "integrity_check" if path.stat().st_size <= _THOROUGH else "quick_check"
    with closing(connect_beside(path, "ro&immutable=1")) as connection:
        try:
            finding = connection.execute(f"PRAGMA {check}(1)").fetchone()[0]
            if finding != b"ok":
                raise CellBroken(f"its copy is damaged: {finding.decode('utf-8', 'replace')}")
            counters = schema.load(connection)
            revision, position = schema.scan(connection)
        except sqlite3.DatabaseError as fault:
            raise CellBroken(f"its copy cannot be read: {fault}") from None
    if not counters.saved:
        raise CellBroken("its copy does not say where it stands")
    if counters.revision != rev:
        raise CellBroken(f"its copy says revision {counters.revision}, not {rev}")
    if revision > rev or position > counters.position:
        raise CellBroken(f"its copy holds rows past revision {rev}")


def prune(connection: sqlite3.Connection, rev: int) -> None:
    """Take tombstones and marks up to revision `rev` away, in an open cell between transactions.

    Only once a record with a base of that revision is settled: until then a piece from before may
    have to be made again. Counters that are saved stay right. Raises sqlite3.Error.
    """
    superfluous = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM blobs WHERE data IS NULL AND rev <= :rev)"
        " OR EXISTS (SELECT 1 FROM marks WHERE name = 'records' AND rev <= :rev)",
        {"rev": rev},
    ).fetchone()[0]
    if not superfluous:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("DELETE FROM blobs WHERE data IS NULL AND rev <= ?", (rev,))
        connection.execute("DELETE FROM marks WHERE rev <= ?", (rev,))
        # The newest revision may have been a tombstone's: it must not be given out again.
        connection.execute("INSERT OR REPLACE INTO marks (name, rev) VALUES ('pruned', ?)", (rev,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check_piece(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA piece.application_id").fetchone()[0] != schema.APPLICATION_ID:
        raise CellBroken("a piece of it is not a cell: the application id is wrong")
    written = connection.execute("PRAGMA piece.user_version").fetchone()[0]
    if written > schema.FORMAT:
        raise NewerFormat(f"a piece of it has format {written}; upgrade the node")
    if connection.execute("SELECT count(*) FROM piece.counters").fetchone()[0] != 1:
        raise CellBroken("a piece of it does not say where it ends")


def _compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def connect_beside(path: Path, mode: str) -> sqlite3.Connection:
    """Open a database as it is, whoever else has it open. Texts come as their UTF-8 bytes."""
    connection = sqlite3.connect(
        _uri(path, mode), uri=True, isolation_level=None, check_same_thread=False, timeout=5.0
    )
    connection.text_factory = bytes
    return connection


def _empty(page_size: int) -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        schema.create(connection)
        return connection.serialize()


# What a small piece starts as; making the tables each time would take longer than all the rest.
_EMPTY: Final = _empty(_SMALL_PAGE)
# What others start as: they may become a cell's file, and have a cell's pages.
_EMPTY_LARGE: Final = _empty(4096)
