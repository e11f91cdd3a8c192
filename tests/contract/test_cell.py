"""A cell on both database adapters: order, shared commits, and failures that stay alone."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cellstore import schema
from cellstore.cell import MAX_BATCH, Cell
from cellstore.conditions import MUST_BE_ABSENT
from cellstore.database import Database, InlineDatabase, ThreadedDatabase, Work, run
from cellstore.errors import CellBroken, DiskFull
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
from cellstore.transactions import Done

LIMIT = 2**30


def record(seq: int, text: bytes | None = None) -> Record:
    return Record(seq, text or b'{"seq":%d}' % seq)


class CountingDatabase:
    """Counts how often work is handed to a real database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.handed = 0

    def post(self, work: Work[Any], done: Callable[[Any], object]) -> None:
        self.handed += 1
        self._database.post(work, done)

    async def close(self) -> None:
        await self._database.close()


class Asked:
    """A cell that is asked for outcomes alone."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cell, name)

    def perform(self, operation: Operation) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._outcome(self._cell.perform(operation)))

    async def _outcome(self, future: asyncio.Future[Done]) -> Any:
        return (await future).outcome


Reopen = Callable[[], Any]


@pytest.fixture(params=[ThreadedDatabase, InlineDatabase])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopen]:
    """Opens the same cell as often as it is called; the cell before must be closed."""
    path = tmp_path / "cell.db"
    path.touch()
    opened: list[Asked] = []

    async def open_cell() -> tuple[Asked, CountingDatabase]:
        database = CountingDatabase(await request.param.open(path))
        try:
            if not opened:
                await run(database, schema.create)
            cell = Asked(await Cell.open("c", database, lambda: None))
        except CellBroken:
            await database.close()
            raise
        database.handed = 0
        opened.append(cell)
        return cell, database

    yield open_cell
    for cell in opened:
        with contextlib.suppress(ValueError, sqlite3.ProgrammingError):
            await cell.close()


async def test_operations_are_served_in_order(reopen: Reopen) -> None:
    cell, _ = await reopen()
    outcomes = await asyncio.gather(
        cell.perform(Append(record(1))),
        cell.perform(ReadRecords(LIMIT)),
        cell.perform(Append(record(2))),
        cell.perform(PutBlob("k", b"v")),
        cell.perform(ReadBlob("k", LIMIT)),
        cell.perform(DeleteBlob("k")),
        cell.perform(ListBlobs()),
        cell.perform(ReadRecords(LIMIT)),
    )
    assert b"".join(outcomes[1]) == b'[{"seq":1}]'
    assert isinstance(outcomes[4], Blob)
    assert outcomes[6] == []
    assert b"".join(outcomes[7]) == b'[{"seq":1},{"seq":2}]'


async def test_waiting_writes_share_a_commit(reopen: Reopen) -> None:
    cell, database = await reopen()
    await asyncio.gather(*[cell.perform(Append(record(seq))) for seq in range(MAX_BATCH)])
    # The first goes alone, the rest came while it was under way.
    assert database.handed == 2
    await asyncio.gather(*[cell.perform(Append(record(seq))) for seq in range(2 * MAX_BATCH)])
    assert database.handed == 2 + 3


async def test_a_failing_write_takes_no_neighbour_with_it(reopen: Reopen) -> None:
    cell, _ = await reopen()
    too_large = PutBlob("large", b"x" * 200)

    def limit(connection: sqlite3.Connection) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 150)

    await run(cell._database, limit)
    outcomes: Any = await asyncio.gather(
        cell.perform(Append(record(1))),
        cell.perform(Append(record(2))),
        cell.perform(too_large),
        cell.perform(PutBlob("small", b"y")),
        cell.perform(PutBlob("small", b"z", MUST_BE_ABSENT)),
        return_exceptions=True,
    )
    assert list(outcomes[:2]) == [None, None]
    assert isinstance(outcomes[2], sqlite3.DataError)
    assert list(outcomes[3:]) == [True, False]
    assert await cell.perform(ListBlobs()) == ["small"]
    assert b"".join(await cell.perform(ReadRecords(LIMIT))) == b'[{"seq":1},{"seq":2}]'


@dataclass(frozen=True)
class FailingRead:
    """A read that meets a damaged page."""

    statements: ClassVar[int] = 0
    absent: ClassVar[None] = None

    def apply(self, connection: sqlite3.Connection, counters: schema.Counters) -> None:
        raise sqlite3.OperationalError("a damaged page")


async def test_a_failing_read_does_not_have_its_neighbours_done_twice(reopen: Reopen) -> None:
    cell, _ = await reopen()
    await cell.perform(Append(record(1)))
    for number in range(5):
        key = f"lease-{number}"
        # The first goes alone; the two behind it share a batch.
        outcomes: Any = await asyncio.gather(
            cell.perform(ListBlobs()),
            cell.perform(PutBlob(key, b"mine", MUST_BE_ABSENT)),
            cell.perform(FailingRead()),
            return_exceptions=True,
        )
        assert outcomes[1] is True
        assert isinstance(outcomes[2], sqlite3.OperationalError)
    await cell.perform(Append(record(2)))
    assert (cell._counters.revision, cell._counters.position) == (7, 2)


async def test_a_full_disk_loses_nothing_and_ends(reopen: Reopen) -> None:
    cell, _ = await reopen()
    await cell.perform(PutBlob("first", b"1"))

    def pages(count: int) -> Callable[[sqlite3.Connection], None]:
        return lambda connection: connection.execute(f"PRAGMA max_page_count = {count}").close()

    await run(cell._database, pages(1))
    writes = [PutBlob(f"large-{n}", bytes([n]) * 20000) for n in range(3)]
    small = [PutBlob("first", b"2"), Append(record(1))]
    outcomes = await asyncio.gather(
        *[cell.perform(operation) for operation in (*writes, *small)], return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes[:3]] == [DiskFull] * 3
    assert "cell `c`" in str(outcomes[0])
    # What needs no new page has room.
    assert outcomes[3:] == [True, None]
    await run(cell._database, pages(1000000))
    for operation in writes:
        assert await cell.perform(operation) is True
    assert await cell.perform(ListBlobs()) == ["first", "large-0", "large-1", "large-2"]


async def test_one_who_goes_away_is_served_all_the_same(reopen: Reopen) -> None:
    cell, _ = await reopen()
    first = cell.perform(Append(record(1)))
    second = cell.perform(Append(record(2)))
    first.cancel()
    second.cancel()
    assert b"".join(await cell.perform(ReadRecords(LIMIT))) == b'[{"seq":1},{"seq":2}]'


async def test_closing_finishes_what_waits(reopen: Reopen) -> None:
    cell, _ = await reopen()
    writes = [cell.perform(Append(record(seq))) for seq in range(200)]
    await cell.close()
    assert await asyncio.gather(*writes) == [None] * 200
    cell, _ = await reopen()
    chunks = await cell.perform(ReadRecords(LIMIT))
    assert b"".join(chunks).count(b"seq") == 200


async def test_counters_survive_closing_and_crashing(reopen: Reopen, tmp_path: Path) -> None:
    cell, _ = await reopen()
    await cell.perform(Replace([record(9), record(8), record(7)]))
    await cell.perform(PutBlob("k", b"v"))
    await cell.perform(DeleteBlob("k"))
    counters = cell._counters
    assert (counters.revision, counters.position) == (3, 3)
    await cell.close()
    # Closed cleanly: the counters were kept, and the first write takes them away.
    cell, _ = await reopen()
    assert cell._counters == schema.Counters(3, 3, saved=True)
    await cell.perform(Append(record(1)))
    assert cell._counters == schema.Counters(4, 4, saved=False)
    # A second look, as after a crash: they are found by a scan.
    other = sqlite3.connect(tmp_path / "cell.db")
    assert schema.load(other) == schema.Counters(4, 4, saved=False)
    other.close()
    chunks = await cell.perform(ReadRecords(LIMIT))
    assert b"".join(chunks) == b'[{"seq":9},{"seq":8},{"seq":7},{"seq":1}]'


async def test_what_changes_nothing_writes_nothing(reopen: Reopen) -> None:
    cell, _ = await reopen()
    await cell.perform(Append(record(1)))
    await cell.perform(PutBlob("k", b"v"))
    before = (cell._counters.revision, cell._counters.position)
    await cell.perform(Append(record(1)))
    await cell.perform(PutBlob("k", b"v"))
    await cell.perform(PutBlob("k", b"w", MUST_BE_ABSENT))
    await cell.perform(DeleteBlob("absent"))
    await cell.perform(ReadRecords(LIMIT))
    assert (cell._counters.revision, cell._counters.position) == before


async def test_rows_carry_the_revision_that_wrote_them(reopen: Reopen, tmp_path: Path) -> None:
    cell, _ = await reopen()
    await cell.perform(Append(record(1)))
    await cell.perform(PutBlob("a", b"1"))
    await cell.perform(PutBlob("b", b"2"))
    await cell.perform(DeleteBlob("a"))
    await cell.perform(Append(record(1, b'{"seq":1,"again":1}')))
    await cell.perform(Replace([record(5)]))
    other = sqlite3.connect(tmp_path / "cell.db")
    assert other.execute("SELECT seq, pos, rev FROM records").fetchall() == [(5, 0, 6)]
    blobs = other.execute("SELECT key, rev, data FROM blobs ORDER BY key").fetchall()
    assert blobs == [("a", 4, None), ("b", 3, b"2")]
    assert other.execute("SELECT name, rev FROM marks").fetchall() == [("records", 6)]
    other.close()


async def test_a_cell_that_is_not_ours_is_refused(reopen: Reopen, tmp_path: Path) -> None:
    cell, _ = await reopen()
    await cell.close()
    other = sqlite3.connect(tmp_path / "cell.db")
    other.execute(f"PRAGMA user_version = {schema.FORMAT + 1}")
    other.close()
    with pytest.raises(CellBroken, match="it has format 2 and this version reads up to 1"):
        await reopen()
