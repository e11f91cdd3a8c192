"""One contract for both database adapters: threads, and the synchronous twin."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from cellstore.database import (
    Database,
    InlineDatabase,
    OpenDatabase,
    ThreadedDatabase,
    Work,
    connect_immutable,
    run,
)


@pytest.fixture(params=[ThreadedDatabase, InlineDatabase])
def open_database(request: pytest.FixtureRequest) -> OpenDatabase:
    opener: OpenDatabase = request.param.open
    return opener


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cell.db"
    path.touch()
    return path


def create(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE t (x)")


def insert(value: object) -> Work[int]:
    def work(connection: sqlite3.Connection) -> int:
        return connection.execute("INSERT INTO t VALUES (?)", (value,)).rowcount

    return work


def values(connection: sqlite3.Connection) -> list[object]:
    return [x for (x,) in connection.execute("SELECT x FROM t ORDER BY rowid")]


async def test_work_is_run_in_order(open_database: OpenDatabase, path: Path) -> None:
    database: Database = await open_database(path)
    await run(database, create)
    running = [run(database, insert(n)) for n in range(50)]
    assert await asyncio.gather(*running) == [1] * 50
    assert await run(database, values) == list(range(50))
    await database.close()


async def test_errors_come_to_the_one_who_asked(open_database: OpenDatabase, path: Path) -> None:
    database = await open_database(path)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await run(database, values)
    await run(database, create)
    assert await run(database, values) == []
    await database.close()


async def test_work_is_done_also_if_nobody_waits(open_database: OpenDatabase, path: Path) -> None:
    database = await open_database(path)
    await run(database, create)
    database.post(insert(1), lambda _: None)
    assert await run(database, values) == [1]
    await database.close()


async def test_settings_of_the_connection(open_database: OpenDatabase, path: Path) -> None:
    database = await open_database(path)

    def pragmas(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await run(database, pragmas) == [b"wal", 2]
    assert await run(database, lambda c: c.execute("SELECT 'text'").fetchone()[0]) == b"text"
    await database.close()


async def test_closing_leaves_one_file(open_database: OpenDatabase, path: Path) -> None:
    database = await open_database(path)
    await run(database, create)
    assert (path.parent / "cell.db-wal").exists()
    await database.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["cell.db"]
    connection = connect_immutable(path)
    assert values(connection) == []
    connection.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["cell.db"]


async def test_after_closing_nothing_runs(open_database: OpenDatabase, path: Path) -> None:
    database = await open_database(path)
    await database.close()
    with pytest.raises((ValueError, sqlite3.ProgrammingError)):
        await run(database, create)


async def test_a_missing_file_is_an_error(open_database: OpenDatabase, tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        await open_database(tmp_path / "missing.db")
    assert list(tmp_path.iterdir()) == []


async def test_rubbish_is_an_error(open_database: OpenDatabase, path: Path) -> None:
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        await open_database(path)
    assert path.read_bytes() == b"rubbish" * 1000
