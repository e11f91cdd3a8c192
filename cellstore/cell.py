"""The one owner of an open cell in this process: its database and the order of its requests.

Requests of a cell are served one batch at a time, in the order they came. What arrives while a
commit is under way shares the next one. No request waits on another's task, so one whose client
goes away is still finished.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cellstore import schema
from cellstore.database import Database, Work, run
from cellstore.faults import Shortage, translate
from cellstore.operations import Operation
from cellstore.schema import Counters
from cellstore.transactions import Done, Failure, run_batch

if TYPE_CHECKING:
    from cellstore.tenure import Tenure

T = TypeVar("T")

# A batch is bounded so that the first who wait are not answered much later for it.
MAX_BATCH = 64


class Cell:
    """An open cell. Made by `Cell.open`; `perform` until `close`.

    `users` counts the requests that are not yet answered, `tenure` is this process's hold of the
    cell, None where there is no bucket.
    """

    def __init__(
        self, name: str, database: Database, counters: Counters, shortage: Shortage
    ) -> None:
        self.name = name
        self.last_used = 0.0
        self.users = 0
        self.tenure: Tenure | None = None
        # The newest revision that was committed.
        self.revision = counters.revision
        self._database = database
        self._counters = counters
        self._shortage = shortage
        self._waiting: list[tuple[Operation, asyncio.Future[Done]]] = []
        self._batch: list[tuple[Operation, asyncio.Future[Done]]] = []
        self._quiet: asyncio.Future[None] | None = None
        self._unused = asyncio.Event()

    @classmethod
    async def open(cls, name: str, database: Database, shortage: Shortage) -> Cell:
        """Take over an open database. Raises CellBroken or NewerFormat and leaves it open."""
        return cls(name, database, await run(database, schema.load), shortage)

    @property
    def busy(self) -> bool:
        """Whether a request is being served or waits."""
        return bool(self._batch) or self.users > 0

    @property
    def kept(self) -> bool:
        """Whether it must stay open: it is busy, or not all of it is in the bucket."""
        return self.busy or (self.tenure is not None and self.tenure.kept)

    @property
    def counters(self) -> Counters:
        """Where the cell stands; to be looked at in `work` alone, where no batch is under way."""
        return self._counters

    def perform(self, operation: Operation) -> asyncio.Future[Done]:
        """Queue an operation; the future brings what it came to once committed, or its error."""
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, future))
        if not self._batch:
            self._serve()
        return future

    def post(self, work: Work[T], done: Callable[[T | Exception], object]) -> None:
        """Run `work` between two batches, and call `done` with its result or error."""
        self._database.post(work, done)

    async def work(self, work: Work[T]) -> T:
        """Run `work` between two batches. Raises what it raises."""
        return await run(self._database, work)

    async def quiet(self) -> None:
        """Wait until no request of it is under way."""
        while self.busy:
            self._unused.clear()
            await self._unused.wait()

    def leave(self) -> None:
        """One of its users has been answered."""
        self.users -= 1
        if not self.users:
            self._unused.set()

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

    def _served(self, served: list[Done] | Exception) -> None:
        if isinstance(served, Exception):
            served = [Done(Failure(served), self.revision, changed=False)] * len(self._batch)
        self.revision = served[-1].revision
        for (_, future), done in zip(self._batch, served, strict=True):
            if future.done():
                continue
            if isinstance(done.outcome, Failure):
                future.set_exception(done.outcome.error)
            else:
                future.set_result(done)
        self._batch = []
        self._unused.set()
        if self._waiting:
            self._serve()
        elif self._quiet is not None:
            self._quiet.set_result(None)
            self._quiet = None

    def _run(self, connection: sqlite3.Connection) -> list[Done]:
        served = run_batch(connection, [operation for operation, _ in self._batch], self._counters)
        return [
            done._replace(outcome=Failure(translate(done.outcome.error, self.name, self._shortage)))
            if isinstance(done.outcome, Failure)
            else done
            for done in served
        ]

    def _save(self, connection: sqlite3.Connection) -> None:
        schema.save(connection, self._counters)
