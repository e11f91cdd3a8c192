"""The one owner of an open cell in this process: its database and the order of its requests.

Requests of a cell are served one batch at a time, in the order they came. What arrives while a
commit is under way shares the next one. No request waits on another's task, so one whose client
goes away is still finished.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

from cellstore import schema
from cellstore.database import Database, run
from cellstore.faults import Shortage, translate
from cellstore.operations import Operation
from cellstore.schema import Counters
from cellstore.transactions import Failure, run_batch

# A batch is bounded so that the first who wait are not answered much later for it.
MAX_BATCH = 64


class Cell:
    """An open cell. Made by `Cell.open`; `perform` until `close`."""

    def __init__(
        self, name: str, database: Database, counters: Counters, shortage: Shortage
    ) -> None:
        self.name = name
        self.last_used = 0.0
        self._database = database
        self._counters = counters
        self._shortage = shortage
        self._waiting: list[tuple[Operation, asyncio.Future[Any]]] = []
        self._batch: list[tuple[Operation, asyncio.Future[Any]]] = []
        self._quiet: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, name: str, database: Database, shortage: Shortage) -> Cell:
        """Take over an open database. Raises CellBroken or NewerFormat and leaves it open."""
        return cls(name, database, await run(database, schema.load), shortage)

    @property
    def busy(self) -> bool:
        """Whether a request is being served or waits."""
        return bool(self._batch)

    def perform(self, operation: Operation) -> asyncio.Future[Any]:
        """Queue an operation; the future brings its outcome once it is committed, or its error."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, future))
        if not self._batch:
            self._serve()
        return future

    async def close(self) -> None:
        """Finish what waits, checkpoint and close. Raises sqlite3.Error; closed either way."""
        while self._batch:
            self._quiet = self._quiet or asyncio.get_running_loop().create_future()
            await self._quiet
        try:
            await run(self._database, self._save)
        finally:
            await self._database.close()

    def _serve(self) -> None:
        self._batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        self._database.post(self._run, self._served)

    def _served(self, served: list[Any] | Exception) -> None:
        outcomes = [Failure(served)] * len(self._batch) if isinstance(served, Exception) else served
        for (_, future), outcome in zip(self._batch, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, Failure):
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome)
        self._batch = []
        if self._waiting:
            self._serve()
        elif self._quiet is not None:
            self._quiet.set_result(None)
            self._quiet = None

    def _run(self, connection: sqlite3.Connection) -> list[Any]:
        outcomes = run_batch(
            connection, [operation for operation, _ in self._batch], self._counters
        )
        return [
            Failure(translate(outcome.error, self.name, self._shortage))
            if isinstance(outcome, Failure)
            else outcome
            for outcome in outcomes
        ]

    def _save(self, connection: sqlite3.Connection) -> None:
        schema.save(connection, self._counters)
