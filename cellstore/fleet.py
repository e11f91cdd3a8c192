"""A node's part in a fleet: joins claims and replication, and keeps both going.

Without a bucket there is no fleet, and none of this is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from cellstore.claims import Claims
from cellstore.clock import Clock
from cellstore.copies import Copies
from cellstore.directory import HINT, REGISTRY
from cellstore.epochs import CELLS, meta_prefix
from cellstore.errors import CellstoreError, OwnedElsewhere
from cellstore.index import RunIndex
from cellstore.node import Node
from cellstore.objects import ObjectStore, StoreFault
from cellstore.operations import Touch
from cellstore.ownership import Identity
from cellstore.replicator import Replicator
from cellstore.restoring import Restorer
from cellstore.shipping import Shipper
from cellstore.tenure import Tenure, Terms

log = structlog.get_logger("cellstore.fleet")

# How often the runs in the bucket are listed, in seconds; those of this node are known at once.
LIST_SECS = 10.0

# At most so many new names are looked at, one list each, before they are taken for runs.
_LOOKS = 32

# Cells brought up at once to publish what a stop or an outage left.
_RECOVERIES = 8

_RECOVER_PAUSE = 1.0
# What kept a cell from being published, a full disk say, takes a while to be mended.
_RECOVER_AGAIN = 5.0

# How often the copies on the disk are measured, where they are limited.
TRIM_SECS = 30.0


class Fleet:
    """The parts of a node that work with the bucket."""

    def __init__(
        self,
        copies: Copies,
        store: ObjectStore,
        clock: Clock,
        fresh: Callable[[], str],
        me: Identity,
        runs: RunIndex,
        *,
        sync_secs: float,
        ack_bucket: bool,
        max_lag_secs: float,
        max_disk: int | None = None,
        alarm: Callable[[str], None],
    ) -> None:
        self._copies = copies
        self._store = store
        self._runs = runs
        self._me = me
        # Called when the data directory turns out to be in use twice. Nothing may be done after.
        self._alarm = alarm
        # Bytes that the copies may take together; those of cells in use are never taken away.
        self._max_disk = max_disk
        directory, offload = copies.directory, copies.offload
        shipper = Shipper(directory, store, offload, fresh)
        self.replicator = Replicator(clock, sync_secs, me.ttl, shipper.uploading)
        self._terms = Terms(
            me=me,
            store=store,
            clock=clock,
            fresh=fresh,
            ack_bucket=ack_bucket,
            max_lag_secs=max_lag_secs,
            urge=self.replicator.urge,
            settled=self._settled,
            fenced=self._fenced,
            mark=self._mark,
        )
        self.claims = Claims(
            copies,
            self.replicator,
            Restorer(directory, store, offload),
            shipper,
            self._terms,
            runs,
            self._leave,
        )
        self._node: Node | None = None
        # Cells that have, or may have, writes that are not in the bucket and no open cell.
        self._left: list[str] = []

    def unpublished(self) -> list[str]:
        """The cells whose copies here hold, or may hold, writes that are not in the bucket."""
        open_ones = [*self.replicator, *self.claims.leaving.values()]
        clean = {tenure.name for tenure in open_ones if not tenure.dirty}
        marked = {name for name, _ in self._copies.directory.marks()}
        return sorted(({*self._left} | marked) - clean)

    def _leave(self, name: str) -> None:
        self._left.append(name)

    def attach(self, node: Node) -> None:
        """Say which node's cells these are."""
        self._node = node

    async def start(self) -> None:
        """Learn which runs there are and which copies must be published. Raises StoreFault."""
        self._runs.merge(await self._store.folders(CELLS))
        self._left = await self._copies.offload(self._find_left)
        if self._left:
            log.info("cells to publish", cells=len(self._left))

    def _find_left(self) -> list[str]:
        copies, directory = self._copies, self._copies.directory
        for name, term in copies.older:
            if name != REGISTRY:
                copies.retire(name, term, None)
        copies.older.clear()
        left = set()
        for name, term in directory.marks():
            if copies.terms.get(name) == term:
                left.add(name)
            else:
                directory.unmark(name, term)
        for name, term in copies.terms.items():
            if name != REGISTRY and not (directory.copy(name, term) / HINT).exists():
                # It was written without a bucket.
                left.add(name)
        return sorted(left)

    async def run(self) -> None:
        """Keep replicating, recovering and listing until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            tasks.create_task(self._pace())
            tasks.create_task(self._recover())
            tasks.create_task(self._list())
            if self._max_disk is not None:
                tasks.create_task(self._trim(self._max_disk))

    async def _tick(self) -> None:
        while True:
            try:
                self.replicator.tick()
            except Exception:
                # One bad round must not end all later ones.
                log.exception("replicating failed")
            await asyncio.sleep(self.replicator.tick_secs)

    async def _pace(self) -> None:
        while True:
            try:
                await self.replicator.pace()
            except Exception:
                log.exception("replicating failed")
                await asyncio.sleep(self.replicator.tick_secs)

    async def _recover(self) -> None:
        slots = asyncio.Semaphore(_RECOVERIES)
        while True:
            left, self._left = self._left, []
            await asyncio.gather(*(self._recover_one(name, slots) for name in left))
            await asyncio.sleep(_RECOVER_AGAIN if self._left else _RECOVER_PAUSE)

    async def _recover_one(self, name: str, slots: asyncio.Semaphore) -> None:
        assert self._node is not None
        async with slots:
            try:
                await self._node.perform(name, Touch())
            except OwnedElsewhere:
                # Its copy here was found to be overtaken, and was moved away.
                return
            except CellstoreError as fault:
                log.warning("cell not published yet", cell=name, why=fault.message)
            except Exception:
                log.exception("cell not published yet", cell=name)
            else:
                return
        if name in self._copies.terms:
            self._left.append(name)

    async def _list(self) -> None:
        while True:
            await asyncio.sleep(LIST_SECS)
            try:
                await self._list_new()
            except StoreFault as fault:
                log.info("runs not listed", why=str(fault))
            except Exception:
                log.exception("runs not listed")

    async def _list_new(self) -> None:
        """Learn of runs that other nodes have created.

        A large first write is uploaded before its run is claimed: if that never happens there are
        objects and no run. Where new names are few, each is looked at.
        """
        new = self._runs.unknown(await self._store.folders(CELLS))
        if len(new) <= _LOOKS:
            listings = await asyncio.gather(*(self._store.list(meta_prefix(name)) for name in new))
            new = [name for name, found in zip(new, listings, strict=True) if found.entries]
        self._runs.merge(new)

    async def _trim(self, limit: int) -> None:
        while True:
            await asyncio.sleep(TRIM_SECS)
            try:
                await self.trim(limit)
            except Exception:
                log.exception("copies not trimmed")

    async def trim(self, limit: int) -> None:
        """Discard closed copies that are whole in the bucket, the longest unused first.

        Stops when all copies together take at most `limit` bytes.
        """
        assert self._node is not None
        sizes = await self._copies.offload(self._copies.sizes)
        total = sum(size for _, _, size in sizes)
        for _, name, size in sizes:
            if total <= limit:
                return
            if await self._node.with_closed(name, partial(self._discard_cache, name)):
                total -= 0 if name in self._copies.terms else size

    async def _discard_cache(self, name: str) -> None:
        copies = self._copies
        if await copies.offload(copies.is_cache, name):
            await copies.offload(copies.retire, name, copies.terms[name], False)
            log.info("copy discarded for room", cell=name)

    def _settled(self, tenure: Tenure) -> None:
        self._copies.remember(tenure.cell, tenure.record)
        if self._node is not None and not tenure.dirty:
            self._node.look_for_room()

    def _fenced(self, tenure: Tenure) -> None:
        assert tenure.lost_to is not None
        newer = tenure.lost_to.record
        if newer is not None and newer.disk == self._me.disk:
            self._alarm(
                f"cell `{tenure.name}` was claimed by another process on a copy of this data "
                "directory, or on this very one; only one may use it"
            )
        elif self._node is not None:
            self._node.put_down(tenure.cell)

    async def _mark(self, tenure: Tenure) -> None:
        await self._copies.offload(self._copies.directory.mark, tenure.name, tenure.record.term)
        tenure.marked = True
