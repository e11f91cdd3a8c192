"""When each open cell's tenure syncs, renews and collects: many at once, the nearest lease first.

The cells of a node share a bounded number of slots. Where the bucket is slower than the load, or
the loop is, the cadence stretches. A lease that can still be kept comes first, then cells that
somebody waits for, then those that were not synced for longest. Syncs are started one after the
other, spread over the time until the next look: a burst of them would keep requests waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from cellstore.clock import Clock
from cellstore.errors import CellstoreError
from cellstore.objects import StoreFault
from cellstore.ownership import MARGIN
from cellstore.tenure import RENEW_AT_ONCE, RENEW_BELOW, Tenure

log = structlog.get_logger("cellstore.replicator")

# Syncs on their way at once, as many renewals beside them, and deletions.
SLOTS = 64
_COLLECTIONS = 4

# How long a sync that somebody waits for is put off for others to share it, at least and at most.
_GATHER_SECS = 0.001
_LONGEST_GATHER = 0.01

# How often to look for something to delete.
_COLLECT_SECS = 1.0

# A start that comes later than it was asked for by more, in seconds, tells of a busy loop.
_LATE = 0.005

# Syncs started at once, at most, beside the one whose turn it is.
_CATCH_UP = 15

# Whatever the load, all leases that are used are renewed within this part of one.
_RENEW_WITHIN = 0.5


class Replicator:
    """Replicates the tenures that were added. `uploading` tells how many upload something large."""

    def __init__(
        self, clock: Clock, sync_secs: float, ttl: float, uploading: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._uploading = uploading
        self._sync_secs = sync_secs
        self._ttl = ttl
        # How often to look for what is due.
        self.tick_secs = min(0.25, sync_secs / 4, ttl / 16)
        self._tenures: dict[str, Tenure] = {}
        self._syncing: dict[Tenure, asyncio.Task[bool]] = {}
        self._renewing: dict[Tenure, asyncio.Task[bool]] = {}
        self._collecting: dict[Tenure, asyncio.Task[bool]] = {}
        self._urged: set[Tenure] = set()
        # Those whose last sync failed: their leases are renewed apart from it.
        self._failing: set[Tenure] = set()
        # Those that are due, the first last.
        self._queue: list[Tenure] = []
        self._wake = asyncio.Event()
        self._collect_at = 0.0
        # Seconds between two starts while all is well, and the most there may ever be.
        self._spread = 0.0
        self._longest = 1.0
        # How much longer the loop's load has made them.
        self._stretch = 1.0

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
        self._failing.discard(tenure)
        while tasks := self._tasks(tenure):
            if tenure.over and not tenure.appending:
                # What it reads or uploads is of no use any more.
                for task in tasks:
                    task.cancel()
            await asyncio.wait(tasks)
            await asyncio.sleep(0)

    def working(self, tenure: Tenure) -> bool:
        """Whether anything of it is under way."""
        return bool(self._tasks(tenure))

    def _has_slot(self) -> bool:
        """Whether one more sync may start. Those that wait for large uploads hold no slot."""
        return len(self._syncing) - self._uploading() < SLOTS

    def _tasks(self, tenure: Tenure) -> list[asyncio.Task[bool]]:
        groups = (self._syncing, self._renewing, self._collecting)
        return [group[tenure] for group in groups if tenure in group]

    def urge(self, tenure: Tenure) -> None:
        """Sync a tenure before it is due, as soon as there is a slot: somebody waits for it."""
        if tenure in self._syncing:
            self._urged.add(tenure)
        elif self._tenures.get(tenure.name) is tenure:
            if self._has_slot():
                self._start(self._syncing, tenure, _gathered(tenure))
            else:
                self._urged.add(tenure)

    def tick(self) -> None:
        """Look for what is due. To be called every `tick_secs`."""
        now, reading = self._clock.monotonic(), self._clock.reading()
        used = 0
        queue: list[tuple[int, float, int, Tenure]] = []
        late: list[tuple[float, int, Tenure]] = []
        for tenure in self._tenures.values():
            active = tenure.used
            used += active
            if not active and tenure not in self._urged:
                continue
            if tenure not in self._syncing and (
                tenure in self._urged or tenure.due(now, reading, self._sync_secs)
            ):
                # One whose lease is over is lost already: keeping another costs half as much.
                endangered = MARGIN < tenure.lease.left(reading) / tenure.lease.ttl < RENEW_BELOW
                order = 0 if endangered else 1 if tenure in self._urged else 2
                queue.append((order, tenure.synced_at, len(queue), tenure))
            if (
                # Whatever keeps it from syncing, be it a long upload, others before it or a fault.
                tenure.wants_renewal(reading, RENEW_AT_ONCE)
                and not tenure.appending
                and not tenure.over
                and tenure not in self._renewing
            ):
                late.append((tenure.lease.left(reading), len(late), tenure))
        for _, _, tenure in sorted(late)[: SLOTS - len(self._renewing)]:
            ready = tenure not in self._syncing and tenure not in self._failing
            if tenure.dirty and ready and self._has_slot():
                # The same request with its changes in it.
                self._start(self._syncing, tenure, tenure.sync())
            else:
                self._start(self._renewing, tenure, tenure.renew())
        queue.sort(reverse=True)
        self._queue = [tenure for *_, tenure in queue]
        self._spread = self.tick_secs / max(1, len(queue))
        self._longest = self._ttl * _RENEW_WITHIN / max(1, used)
        if queue:
            self._wake.set()
        if now >= self._collect_at:
            self._collect_at = now + _COLLECT_SECS
            self._collect(now)

    def _collect(self, now: float) -> None:
        for tenure in self._tenures.values():
            if len(self._collecting) >= _COLLECTIONS:
                return
            if tenure not in self._collecting and tenure.has_garbage(now):
                self._start(self._collecting, tenure, tenure.collect())

    async def pace(self) -> None:
        """Start what is due, one after the other, until cancelled."""
        before = self._clock.monotonic()
        while True:
            if not self._queue or not self._has_slot():
                self._wake.clear()
                await self._wake.wait()
                before = self._clock.monotonic()
            # A busy loop comes back late: what must have been started by now is, in one go.
            elapsed = self._clock.monotonic() - before
            for _ in range(1 + min(_CATCH_UP, int(elapsed / self._longest))):
                self._start_next()
            before = self._clock.monotonic()
            pause = min(self._spread * self._stretch, self._longest)
            await asyncio.sleep(pause)
            late = self._clock.monotonic() - before - pause
            self._stretch = self._stretch * 1.5 if late > _LATE else max(1.0, self._stretch * 0.9)
            self._stretch = min(self._stretch, max(1.0, self._longest / self._spread))

    def _start_next(self) -> None:
        while self._queue and self._has_slot():
            tenure = self._queue.pop()
            if tenure not in self._syncing and self._tenures.get(tenure.name) is tenure:
                self._start(self._syncing, tenure, tenure.sync())
                return

    def _start(
        self,
        group: dict[Tenure, asyncio.Task[bool]],
        tenure: Tenure,
        work: Coroutine[Any, Any, None],
    ) -> None:
        if group is self._syncing:
            self._urged.discard(tenure)
        task = asyncio.create_task(_survive(tenure.name, work, _FAILED[group is self._collecting]))
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
        if task.result() or tenure.over:
            self._failing.discard(tenure)
        else:
            self._failing.add(tenure)
        if task.result() and tenure in self._urged and not tenure.over:
            # Somebody came while it was under way. After a failure the next tick is soon enough.
            self.urge(tenure)
        if self._queue:
            self._wake.set()

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


async def _gathered(tenure: Tenure) -> None:
    """Sync a tenure for those who come in one go, not for the first of them alone.

    Those who were answered by the last sync are about to come again: with a tenth of a round trip
    they share this one, instead of waiting for it and for one of their own.
    """
    await asyncio.sleep(min(_LONGEST_GATHER, max(_GATHER_SECS, tenure.append_secs / 10)))
    await tenure.sync()


_FAILED = ("cell not replicated", "superseded objects not deleted")


async def _survive(cell: str, work: Coroutine[Any, Any, None], failed: str) -> bool:
    """Do one piece of work; what goes wrong with one cell stops no other, nor its next attempt."""
    try:
        await work
    except StoreFault as fault:
        log.warning(failed, cell=cell, why=str(fault))
    except CellstoreError as fault:
        log.error(failed, cell=cell, why=fault.message)  # noqa: TRY400
    except Exception:
        log.exception(failed, cell=cell)
    else:
        return True
    return False
