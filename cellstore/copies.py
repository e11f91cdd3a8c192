"""The local copies of cells: which there are, making one with its first write, opening one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from cellstore import schema
from cellstore.cell import Cell
from cellstore.database import (
    OpenDatabase,
    connect,
    connect_immutable,
    connect_new,
    prepare_to_open,
)
from cellstore.directory import DATABASE, FIRST_TERM, HINT, DataDirectory, full_disk
from cellstore.epochs import EpochRecord, decode_hint
from cellstore.errors import CellBroken, DiskFull
from cellstore.faults import translate
from cellstore.operations import Operation
from cellstore.schema import Counters
from cellstore.transactions import Failure, run_batch

log = structlog.get_logger("cellstore.copies")

# Runs blocking work where it does not hold up the loop.
Offload = Callable[..., Awaitable[Any]]


class Copies:
    """The copies of one data directory. `terms` has the newest term of each cell's copies."""

    def __init__(
        self, directory: DataDirectory, open_database: OpenDatabase, offload: Offload
    ) -> None:
        self.directory = directory
        self.offload = offload
        self.terms: dict[str, int] = {}
        # Copies of older terms than the newest, which nobody has tidied away yet.
        self.older: list[tuple[str, int]] = []
        self._open_database = open_database

    def scan(self) -> None:
        """Learn which copies are here, from names alone."""
        for name, term in self.directory.copies():
            known = self.terms.get(name)
            if known is not None:
                self.older.append((name, min(known, term)))
            self.terms[name] = term if known is None else max(known, term)

    def path(self, name: str) -> Path:
        """The database file of a cell's newest copy."""
        return self.directory.copy(name, self.terms[name]) / DATABASE

    async def open(self, name: str) -> Cell:
        """Open a cell's newest copy. Raises what the fault means: CellBroken, DiskFull, ..."""
        database = None
        try:
            database = await self._open_database(self.path(name))
            return await Cell.open(name, database, self.directory.shortage)
        except Exception as error:  # noqa: BLE001 - raised again, translated
            if database is not None:
                await database.close()
            fault = await self.offload(translate, error, name, self.directory.shortage)
            raise fault from None

    def read_closed(self, name: str, operation: Operation, full: DiskFull) -> Any:
        """Serve a read of a cell that a full disk keeps from being opened.

        SQLite makes files beside a database to open it, even to read. A cleanly closed one, which
        has no log beside it, can be read without. Raises `full` for everything else.
        """
        path = self.path(name)
        log_file = path.with_name(path.name + "-wal")
        if operation.statements or (log_file.exists() and log_file.stat().st_size > 0):
            raise full
        connection = connect_immutable(path)
        try:
            return operation.apply(connection, Counters())
        except sqlite3.Error as error:
            raise translate(error, name, self.directory.shortage) from None
        finally:
            connection.close()

    def build(self, name: str, operation: Operation) -> tuple[Path, Any]:
        """Make a staged copy of a new cell with its first write; also returns the outcome."""
        staging = self.directory.stage()
        try:
            return staging, _write_first(staging / DATABASE, operation)
        except BaseException as error:
            self.directory.discard(staging)
            if isinstance(error, Exception):
                raise translate(error, name, self.directory.shortage) from None
            raise

    def remember(self, cell: Cell, record: EpochRecord) -> None:
        """Note the newest settled record beside an open cell's copy, on the cell's own thread.

        It is a hint that may be too old, so it is not synced and may fail.
        """
        path = self.directory.copy(cell.name, record.term) / HINT
        hint = record.encode_hint()

        def told(outcome: object) -> None:
            if isinstance(outcome, Exception):
                log.info("record not remembered", cell=cell.name, why=str(outcome))

        cell.post(lambda _: _overwrite(path, hint), told)

    def sizes(self) -> list[tuple[float, str, int]]:
        """When each copy was last written, its cell, and its bytes; the oldest first."""
        found = []
        for name, term in list(self.terms.items()):
            files = self.directory.copy(name, term)
            try:
                stats = [entry.stat() for entry in os.scandir(files)]
            except FileNotFoundError:
                continue
            found.append(
                (max(stat.st_mtime for stat in stats), name, sum(stat.st_size for stat in stats))
            )
        return sorted(found)

    def is_cache(self, name: str) -> bool:
        """Whether a cell's copy is whole in the bucket, so that nothing is lost with it."""
        term = self.terms.get(name)
        return term is not None and not self._has_unpublished(name, term)

    def retire(self, name: str, term: int, dirty: bool | None) -> Path | None:
        """Take a copy whose term is over out of the way.

        One with unpublished writes becomes an orphan, whose path is returned; any other is
        discarded. Where `dirty` is None that is found out from the copy. May be called again after
        it failed. Raises DiskFull.
        """
        orphan = None
        with full_disk(f"moving cell `{name}` away"):
            # An attempt that failed half-way may have moved it already.
            if self.directory.copy(name, term).exists():
                if self._has_unpublished(name, term) if dirty is None else dirty:
                    orphan = self.directory.orphan(name, term)
                    log.error(
                        "unpublished writes were overtaken and are kept as an orphan",
                        cell=name,
                        term=term,
                        orphan=str(orphan),
                    )
                else:
                    self.directory.drop(name, term)
            self.directory.unmark(name, term)
        if self.terms.get(name) == term:
            del self.terms[name]
        return orphan

    def _has_unpublished(self, name: str, term: int) -> bool:
        """Whether a copy may hold writes that no record covers."""
        copy = self.directory.copy(name, term)
        try:
            hint = decode_hint((copy / HINT).read_bytes())
        except FileNotFoundError:
            # No record of it was ever settled.
            return True
        if not self.directory.marked(name, term):
            return False
        try:
            connection = connect(copy / DATABASE)
            try:
                return hint is None or schema.load(connection).revision > hint.rev
            finally:
                connection.close()
        except (sqlite3.Error, CellBroken):
            return True

    def publish(self, staging: Path, name: str, record: EpochRecord | None) -> None:
        """Make a staged copy the cell's newest, that of `record` where there is a bucket.

        It is discarded where that fails.
        """
        try:
            prepare_to_open(staging / DATABASE)
            if record is not None:
                (staging / HINT).write_bytes(record.encode_hint())
            self.directory.publish(staging, name, FIRST_TERM if record is None else record.term)
        except BaseException as error:
            self.directory.discard(staging)
            if isinstance(error, Exception):
                raise translate(error, name, self.directory.shortage) from None
            raise


def _overwrite(path: Path, data: bytes) -> None:
    """Write a file in place. Emptying it first would have the file system write it out at once."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Blanks after a JSON text are no part of it.
        os.pwrite(file, data.ljust(os.fstat(file).st_size), 0)
    finally:
        os.close(file)


def _write_first(path: Path, operation: Operation) -> Any:
    """Make a cell's tables and its first rows, in a file that nobody else knows yet."""
    connection = connect_new(path)
    try:
        schema.create(connection)
        (done,) = run_batch(connection, [operation], Counters())
    finally:
        connection.close()
    if isinstance(done.outcome, Failure):
        raise done.outcome.error
    return done.outcome
