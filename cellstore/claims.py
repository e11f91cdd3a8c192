"""Bringing up the cells that this node may own, and letting them go. See `claiming`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import structlog

from cellstore.alone import Room
from cellstore.cell import Cell
from cellstore.claiming import Claiming, Means, Result
from cellstore.copies import Copies
from cellstore.epochlog import EpochLog
from cellstore.errors import DiskFull
from cellstore.index import RunIndex
from cellstore.objects import StoreFault
from cellstore.operations import Operation
from cellstore.replicator import Replicator
from cellstore.restoring import Restorer
from cellstore.shipping import Shipper
from cellstore.tenure import Tenure, Terms

log = structlog.get_logger("cellstore.claims")

# Logs of cells that are remembered, so that those of a store without dates can be watched.
_LOGS = 4096

_RELEASE_PAUSE = 0.25

# Claims under way at once; further ones wait for their turn.
_CLAIMS = 32


class Claims:
    """See Opener."""

    def __init__(
        self,
        copies: Copies,
        replicator: Replicator,
        restorer: Restorer,
        shipper: Shipper,
        terms: Terms,
        runs: RunIndex,
        left: Callable[[str], None],
    ) -> None:
        self._copies = copies
        self._replicator = replicator
        # Told of each cell that is closed with writes that are not in the bucket.
        self._left = left
        self._terms = terms
        slots = asyncio.Semaphore(_CLAIMS)
        self._means = Means(
            copies,
            replicator,
            restorer,
            shipper,
            terms,
            runs,
            lambda: self.draining,
            slots,
        )
        self._logs: OrderedDict[str, EpochLog] = OrderedDict()
        # Holds of cells that are being put down.
        self.leaving: dict[str, Tenure] = {}
        # At a stop: no cell is claimed any more, and those that are put down are released.
        self.draining = False

    def drain(self) -> None:
        """Claim no cell any more, and release those that are put down."""
        self.draining = True

    async def bring_up(
        self, name: str, operation: Operation, room: Room, wanted: Callable[[], bool]
    ) -> Result:
        """See Opener. Raises OwnedElsewhere too."""
        return await Claiming(name, operation, room, wanted, self._log(name), self._means).run()

    async def put_down(self, cell: Cell) -> None:
        """See Opener. The copy of a cell whose hold was lost is moved away or discarded."""
        tenure = cell.tenure
        assert tenure is not None
        self.leaving[cell.name] = tenure
        try:
            await self._put_down(cell, tenure)
        finally:
            del self.leaving[cell.name]

    async def _put_down(self, cell: Cell, tenure: Tenure) -> None:
        try:
            if self.draining and not tenure.over:
                # Those who still wait need syncs for their answers; and while the last changes are
                # on their way the lease is renewed, as long as the replicator has it.
                await cell.quiet()
                await tenure.published()
            await self._replicator.drop(tenure)
            if self.draining and not tenure.over:
                await self._release(tenure)
        finally:
            # Also when it is broken off at the end of a stop: the cell's thread must end.
            try:
                await cell.close()
            finally:
                await self._leave(tenure)

    async def _release(self, tenure: Tenure) -> None:
        """Publish what is unpublished and end the hold, once nobody is served under it."""
        if not tenure.dirty and tenure.lease.left(self._terms.clock.reading()) <= 0:
            return
        while not tenure.over:
            try:
                await tenure.sync(release=True)
            except StoreFault as fault:
                log.info("not released yet", cell=tenure.name, why=str(fault))
                await asyncio.sleep(_RELEASE_PAUSE)

    async def _leave(self, tenure: Tenure) -> None:
        """What becomes of the copy of a closed cell."""
        name, term = tenure.name, tenure.record.term
        if tenure.lost_to is None:
            if not tenure.dirty:
                await self._copies.offload(self._copies.directory.unmark, name, term)
            elif not self.draining:
                self._left(name)
            return
        try:
            await self._copies.offload(self._copies.retire, name, term, tenure.dirty)
        except DiskFull as fault:
            # The next request for the cell, or the next start, tries it again.
            log.error("copy not moved away", cell=name, term=term, why=fault.message)  # noqa: TRY400

    def _log(self, name: str) -> EpochLog:
        epochs = self._logs.pop(name, None)
        if epochs is None:
            epochs = EpochLog(name, self._terms.store, self._terms.clock)
        self._logs[name] = epochs
        if len(self._logs) > _LOGS:
            self._logs.popitem(last=False)
        return epochs
