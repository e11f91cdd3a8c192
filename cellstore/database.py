"""The adapter between the shell and SQLite: a database is opened, does work, and is closed.

`ThreadedDatabase` runs work in the thread that aiosqlite gives each connection.
`InlineDatabase` is its synchronous twin on the same real SQLite: work runs at once, in the caller,
so that a simulation repeats exactly. One contract suite runs on both.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import aiosqlite

T = TypeVar("T")

Work = Callable[[sqlite3.Connection], T]


class Database(Protocol):
    """One open SQLite database. Work is run in the order it was given, one piece at a time."""

    def post(self, work: Work[T], done: Callable[[T | Exception], object]) -> None:
        """Run `work` on the connection and call `done` on the loop with its result or error."""

    async def close(self) -> None:
        """Checkpoint and close. Raises sqlite3.Error; the database is unusable either way."""


async def run(database: Database, work: Work[T]) -> T:
    """Run `work` and return its result, or raise what it raised.

    The work is done also if nobody waits for it any more.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(outcome: T | Exception) -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    database.post(work, done)
    return await future


OpenDatabase = Callable[[Path], Awaitable[Database]]


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing SQLite file for reading and writing.

    Every commit is on the disk when it returns. Raises sqlite3.Error. A missing file is an error:
    a new database is made as an empty file first, so that a lost one is never mistaken for it.
    """
    # FULL: an acknowledged write is on the disk, also when the power goes. A cell's pages are few
    # and hot, and many cells are open at once.
    return _connect(path, "synchronous = FULL", "journal_mode = WAL", "cache_size = -1024")


def connect_new(path: Path) -> sqlite3.Connection:
    """Open an empty SQLite file that nobody else knows yet, to be filled.

    What is written goes straight to the file, and is on the disk only when the caller has synced
    it. Raises sqlite3.Error.
    """
    return _connect(path, "synchronous = OFF", "journal_mode = MEMORY")


def prepare_to_open(path: Path) -> None:
    """Make a new, closed file one that `connect` opens without changing it.

    Done before the file is synced, this saves the syncs of a change of its journal's mode.
    """
    connection = _connect(path, "synchronous = OFF", "journal_mode = WAL")
    connection.close()


def _connect(path: Path, *pragmas: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
    )
    try:
        connection.text_factory = bytes
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_immutable(path: Path) -> sqlite3.Connection:
    """Open a cleanly closed SQLite file for reading alone, creating nothing beside it."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&immutable=1",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = bytes
    return connection


class _Connection(aiosqlite.Connection):
    """aiosqlite's connection, given whole pieces of work instead of single statements.

    Each call into the thread costs 20 to 40 µs, so a request makes one. Its end is told to the one
    who waits without a future between, which would cost another turn of the loop.
    """

    def post(self, work: Work[T], done: Callable[[T | Exception], object]) -> None:
        if not self._running:
            raise ValueError("the database is closed")
        tell = asyncio.get_running_loop().call_soon_threadsafe
        self._tx.put_nowait((None, partial(_perform, work, self._conn, done, tell)))

    async def ended(self) -> None:
        """Wait for the thread of a connection that could not be made; it is about to end.

        It has yet to tell the loop so, which must not be closed before.
        """
        while self._thread.is_alive():  # noqa: ASYNC110 - a thread tells of its end to nobody
            await asyncio.sleep(0.001)


def _perform(
    work: Work[T],
    connection: sqlite3.Connection,
    done: Callable[[T | Exception], object],
    tell: Callable[..., object],
) -> None:
    try:
        outcome: T | Exception = work(connection)
    except Exception as error:  # noqa: BLE001 - handed to the one who waits
        outcome = error
    tell(done, outcome)


class ThreadedDatabase:
    """A database whose work runs in a thread of its own."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.post = connection.post

    @classmethod
    async def open(cls, path: Path) -> ThreadedDatabase:
        """Open an existing file. Raises sqlite3.Error."""
        connection = _Connection(lambda: connect(path), iter_chunk_size=64)
        try:
            await connection
        except BaseException:
            await connection.ended()
            raise
        return cls(connection)

    async def close(self) -> None:
        await self._connection.close()


class InlineDatabase:
    """A database whose work runs at once in the caller: no thread, no choice of order."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, path: Path) -> InlineDatabase:
        """Open an existing file. Raises sqlite3.Error."""
        return cls(connect(path))

    def post(self, work: Work[T], done: Callable[[T | Exception], object]) -> None:
        _perform(work, self._connection, done, asyncio.get_running_loop().call_soon)

    async def close(self) -> None:
        self._connection.close()
