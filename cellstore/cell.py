"""The one owner of an open cell in this process: its database and the order of its requests.

Requests of a cell are served one batch at a time, in the order they came. What arrives while a
commit is under way shares the next one. The work runs in a task of its own, so a request whose
client goes away is still finished.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any

from cellstore import schema
from cellstore.database import Database
from cellstore.faults import translate
from cellstore.operations import Operation
from cellstore.transactions import Committed, Failure, run_batch

# A batch is bounded so that the first who wait are not answered much later for it.
MAX_BATCH = 64


class Cell:
    """An open cell. Made by `Cell.open`; `perform` until `close`."""

    def __init__(
        self, name: str, database: Database, revision: int, is_full: Callable[[], bool]
    ) -> None:
        self.name = name
        self.last_used = 0.0
        self._database = database
        self._revision = revision
        self._is_full = is_full
        self._waiting: list[tuple[Operation, asyncio.Future[Any]]] = []
        self._worker: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, name: str, database: Database, is_full: Callable[[], bool]) -> Cell:
        """Take over an open database. Raises CellBroken or NewerFormat and leaves it open."""
        return cls(name, database, await database.run(schema.revision), is_full)

    @property
    def busy(self) -> bool:
        """Whether a request is being served or waits."""
        return self._worker is not None

    def perform(self, operation: Operation) -> asyncio.Future[Any]:
        """Queue an operation; the future brings its outcome once it is committed, or its error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((operation, future))
        if self._worker is None:
            self._worker = loop.create_task(self._serve())
        return future

    async def idle(self) -> None:
        """Wait until nothing is being served."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def close(self) -> None:
        """Finish what waits, checkpoint and close. Raises sqlite3.Error; closed either way."""
        await self.idle()
        await self._database.close()

    async def _serve(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            operations = [operation for operation, _ in batch]
            try:
                committed = await self._database.run(
                    partial(self._run, operations=operations)
                )
            except Exception as error:  # noqa: BLE001 - each who waits is told
                outcomes: list[Any] = [Failure(error)] * len(batch)
            else:
                self._revision, outcomes = committed
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if future.done():
                    continue
                if isinstance(outcome, Failure):
                    future.set_exception(outcome.error)
                else:
                    future.set_result(outcome)
        self._worker = None

    def _run(self, connection: sqlite3.Connection, operations: list[Operation]) -> Committed:
        revision, outcomes = run_batch(connection, operations, self._revision)
        return Committed(
            revision,
            [
                Failure(translate(outcome.error, self.name, self._is_full))
                if isinstance(outcome, Failure)
                else outcome
                for outcome in outcomes
            ],
        )
