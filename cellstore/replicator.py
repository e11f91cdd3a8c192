"""When each open cell's tenure syncs, renews and collects: many at once, the nearest lease first.

The cells of a node share a bounded number of slots. Where the bucket is slower than the load the
cadence stretches; a lease that is about to run out always comes before a sync that is only due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog

from cellstore.clock import Clock
from cellstore.errors import CellstoreError
from cellstore.objects import StoreFault
from cellstore.tenure import Tenure

log = structlog.get_logger("cellstore.replicator")

# Records on their way at once, and deletions.
SLOTS = 64
_COLLECTIONS = 4


class Replicator:
    """Replicates the tenures that were added."""

    def __init__(self, clock: Clock, sync_secs: float) -> None:
        self._clock = clock
        self._sync_secs = sync_secs
        self._tenures: dict[str, Tenure] = {}
        self._syncing: dict[Tenure, asyncio.Task[bool]] = {}
        self._renewing: dict[Tenure, asyncio.Task[bool]] = {}
        self._collecting: dict[Tenure, asyncio.Task[bool]] = {}
        self._urged: set[Tenure] = set()
        # Those that are due, the nearest lease last.
        self._queue: list[Tenure] = []

    def __iter__(self) -> Any:
        return iter(self._tenures.values())

    def __len__(self) -> int:
        return len(self._tenures)

    def add(self, tenure: Tenure) -> None:
        self._tenures[tenure.name] = tenure

    async def drop(self, tenure: Tenure) -> None:
        """Take a tenure off, and wait until nothing of it is under way."""
        if self._tenures.get(tenure.name) is tenure:
            del self._tenures[tenure.name]
        self._urged.discard(tenure)
        while tasks := self._tasks(tenure):
            await asyncio.wait(tasks)
            await asyncio.sleep(0)

    def working(self, tenure: Tenure) -> bool:
        """Whether anything of it is under way."""
        return bool(self._tasks(tenure))

    def _tasks(self, tenure: Tenure) -> list[asyncio.Task[bool]]:
        groups = (self._syncing, self._renewing, self._collecting)
        return [group[tenure] for group in groups if tenure in group]

    def urge(self, tenure: Tenure) -> None:
        """Sync a tenure before it is due, as soon as there is a slot: somebody waits for it."""
        if tenure in self._syncing:
            self._urged.add(tenure)
        elif self._tenures.get(tenure.name) is tenure:
            if len(self._syncing) < SLOTS:
                self._start(self._syncing, tenure, tenure.sync())
            else:
                self._urged.add(tenure)

    def tick(self) -> None:
        """Start what is due. To be called several times in a cadence."""
        now, reading = self._clock.monotonic(), self._clock.reading()
        queue: list[tuple[float, int, Tenure]] = []
        for tenure in self._tenures.values():
            if tenure in self._syncing:
                # Its changes are still being uploaded: the lease must not wait for them.
                if (
                    tenure.wants_renewal(reading)
                    and not tenure.appending
                    and tenure not in self._renewing
                ):
                    self._start(self._renewing, tenure, tenure.renew())
            elif tenure in self._urged or tenure.due(now, reading, self._sync_secs):
                queue.append((tenure.lease.left(reading), len(queue), tenure))
            if (
                tenure not in self._collecting
                and len(self._collecting) < _COLLECTIONS
                and tenure.has_garbage(now)
            ):
                self._start(self._collecting, tenure, tenure.collect())
        queue.sort(reverse=True)
        self._queue = [tenure for _, _, tenure in queue]
        self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._syncing) < SLOTS:
            tenure = self._queue.pop()
            if tenure not in self._syncing and self._tenures.get(tenure.name) is tenure:
                self._start(self._syncing, tenure, tenure.sync())

    def _start(
        self,
        group: dict[Tenure, asyncio.Task[bool]],
        tenure: Tenure,
        work: Coroutine[Any, Any, None],
    ) -> None:
        if group is self._syncing:
            self._urged.discard(tenure)
        task = asyncio.create_task(_survive(tenure.name, work))
        group[tenure] = task
        task.add_done_callback(partial(self._ended, group, tenure))

    def _ended(
        self,
        group: dict[Tenure, asyncio.Task[bool]],
        tenure: Tenure,
        task: asyncio.Task[bool],
    ) -> None:
        del group[tenure]
        if group is not self._syncing or task.cancelled():
            return
        if task.result() and tenure in self._urged and not tenure.over:
            # Somebody came while it was under way. After a failure the next tick is soon enough.
            self.urge(tenure)
        self._fill()

    async def stop(self) -> None:
        """Give up what is under way. What was not settled is found at the next start."""
        while tasks := [
            *self._syncing.values(),
            *self._renewing.values(),
            *self._collecting.values(),
        ]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.sleep(0)


async def _survive(cell: str, work: Coroutine[Any, Any, None]) -> bool:
    """Do one piece of work; what goes wrong with one cell stops no other, nor its next attempt."""
    try:
        await work
    except StoreFault as fault:
        log.warning("cell not replicated", cell=cell, why=str(fault))
    except CellstoreError as fault:
        log.error("cell not replicated", cell=cell, why=fault.message)  # noqa: TRY400
    except Exception:
        log.exception("cell not replicated", cell=cell)
    else:
        return True
    return False
