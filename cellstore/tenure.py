"""This process's hold of one cell: its lease, what of the cell is in the bucket, and who waits.

A tenure begins with a claim that was won and ends when it is released, or fenced by another's
claim. Every change of it is one append to the cell's epoch log, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from cellstore import lineage
from cellstore.cell import Cell
from cellstore.clock import Clock, Reading, iso
from cellstore.epochlog import KEEP_SECS, EpochLog, Lost, Won
from cellstore.epochs import EpochRecord, cell_prefix
from cellstore.errors import CellBroken, OwnedElsewhere, Unavailable
from cellstore.objects import ObjectStore, StoreFault
from cellstore.operations import Operation
from cellstore.ownership import GRAIN, Identity, Lease, Seen, Verdict, after_fence
from cellstore.shipping import Shipper
from cellstore.transactions import Done

log = structlog.get_logger("cellstore.tenure")

# A lease that is used is renewed when less than this part of it is left, with the next sync.
RENEW_BELOW = 0.5

# And when less than this is left, at once and alone: the owner may count on it up to a quarter.
RENEW_AT_ONCE = 0.4


# How often a sync that somebody waits for without a deadline is asked for again.
_NUDGE_SECS = 1.0


class Fenced(Exception):
    """Another record is the newest: the hold is over. What was asked for has not happened here."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the tenures of a node have in common.

    `ack_bucket`: answers wait for the bucket. `max_lag_secs`: writes are refused while the oldest
    unpublished one is older. `urge` asks for a sync now; `settled` and `fenced` are told of those;
    `mark` makes the durable mark of a copy that is going to be written to.
    """

    me: Identity
    store: ObjectStore
    clock: Clock
    fresh: Callable[[], str]
    ack_bucket: bool
    max_lag_secs: float
    urge: Callable[[Tenure], None]
    settled: Callable[[Tenure], None]
    fenced: Callable[[Tenure], None]
    mark: Callable[[Tenure], Awaitable[None]]


class Tenure:
    """A hold of an open cell."""

    def __init__(
        self, cell: Cell, epochs: EpochLog, won: Won, shipper: Shipper, terms: Terms
    ) -> None:
        self.cell = cell
        self.record = replace(won.record, delta=None)
        self.lease: Lease = won.lease
        self.touched = False
        # What newer record there is, once this tenure is over.
        self.lost_to: Seen | None = None
        self.released = False
        # How long the last record took to be settled.
        self.append_secs = 0.0
        self.synced_at = terms.clock.monotonic()
        # The dirty copy has a durable marker, so that a restart finds it.
        self.marked = False
        self._terms = terms
        self._clock = terms.clock
        self._epochs = epochs
        self._shipper = shipper
        self._sent = won.record.rev
        # The highest epoch that is known to be taken.
        self._top = won.record.epoch
        self._dirty_since = terms.clock.reading() if self.dirty else None
        self._waiting: list[asyncio.Future[None]] = []
        self._turn = asyncio.Lock()
        self._collect_after = 0.0
        epochs.claimed(won)

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def dirty(self) -> bool:
        """Whether the cell has revisions that no settled record covers."""
        return self.cell.revision > self.record.rev

    @property
    def kept(self) -> bool:
        """Whether the cell must stay open for it."""
        return not self.over and (self.dirty or self.appending)

    @property
    def used(self) -> bool:
        """Whether the lease is worth keeping: for requests, for writes that are not in the bucket,
        or to tidy up there, which is the owner's alone."""
        return self.touched or self.dirty or self._epochs.cluttered

    @property
    def over(self) -> bool:
        return self.released or self.lost_to is not None

    def holds(self) -> bool:
        """Whether requests may be executed and answered now."""
        return not self.over and self.lease.holds(self._clock.reading())

    def lag(self) -> float:
        """Seconds since the oldest write that may be unpublished; 0 when all is published."""
        if self._dirty_since is None or not self.dirty:
            return 0.0
        return self._clock.reading().since(self._dirty_since)

    # Requests

    def admits(self, operation: Operation) -> bool:
        """Whether `operation` may be executed now, as far as is known without waiting."""
        self.touched = True
        if not self.holds():
            return False
        if not operation.statements:
            return True
        return self.marked and self.lag() <= self._terms.max_lag_secs

    async def admit(self, operation: Operation, deadline: float) -> None:
        """Wait until `operation` may be executed. Raises Fenced, or Unavailable at the deadline."""
        while not self.admits(operation):
            if self.over:
                raise Fenced
            if operation.statements and not self.marked:
                await self._terms.mark(self)
                continue
            self._terms.urge(self)
            if not await self._news(deadline):
                raise Unavailable(
                    f"cell `{self.name}`: writes wait for the bucket; send it again"
                    if self.holds()
                    else f"cell `{self.name}`: its ownership cannot be proved now; send it again"
                )

    def committed(self, done: Done) -> None:
        """Note that a request was executed."""
        if done.changed and self._dirty_since is None:
            self._dirty_since = self._clock.reading()

    def answers(self, done: Done) -> bool:
        """Whether what was executed may be answered now."""
        if done.changed and self.record.rev >= done.revision:
            return True
        if not self.holds():
            return False
        return not self._terms.ack_bucket or self.record.rev >= done.revision

    async def answer(self, done: Done, deadline: float) -> None:
        """Wait until what was executed may be answered.

        Raises Fenced where nothing was changed, OwnedElsewhere where the change is nowhere but in
        the local copy, and Unavailable where its outcome is not known or cannot be by the deadline.
        """
        while not self.answers(done):
            if self.over:
                self._after_fence(done)
                return
            self._terms.urge(self)
            if not await self._news(deadline):
                raise Unavailable(
                    f"cell `{self.name}`: the bucket does not confirm it; it may be done, "
                    "so send the same again"
                )

    def _after_fence(self, done: Done) -> None:
        if not done.changed:
            raise Fenced
        verdict = after_fence(done.revision, self.record.rev, self._sent)
        if verdict is Verdict.UNKNOWN:
            raise Unavailable(
                f"cell `{self.name}`: another node took it over meanwhile; it may be done, "
                "so look before sending it again"
            )
        if verdict is Verdict.ELSEWHERE:
            assert self.lost_to is not None
            raise elsewhere(self.lost_to.record, self._clock.reading().wall)

    async def published(self) -> None:
        """Wait until all is in the bucket or the hold is over. Nothing is written meanwhile."""
        while self.dirty and not self.over:
            self._terms.urge(self)
            await self._news(self._clock.monotonic() + _NUDGE_SECS)

    async def _news(self, deadline: float) -> bool:
        """Wait until something was settled. False at the deadline."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        left = deadline - self._clock.monotonic()
        try:
            done, _ = await asyncio.wait([future], timeout=max(0.0, left))
        finally:
            if not future.done():
                self._waiting.remove(future)
        return bool(done)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # Replication

    def due(self, now: float, reading: Reading, sync_secs: float) -> bool:
        """Whether a sync or a renewal is called for."""
        if self.dirty and now - self.synced_at >= sync_secs:
            return not self.over
        return self.wants_renewal(reading) and not self.over

    def wants_renewal(self, reading: Reading, below: float = RENEW_BELOW) -> bool:
        """Whether the lease is used and less than that part of it is left."""
        if not self.used:
            return False
        return self.lease.left(reading) < self.lease.ttl * below

    @property
    def appending(self) -> bool:
        """Whether a record is on its way."""
        return self._turn.locked()

    async def sync(self, *, release: bool = False) -> None:
        """Publish what is unpublished and renew; at the end of a tenure, release.

        Raises StoreFault when an upload failed: nothing has changed then.
        """
        self.synced_at = self._clock.monotonic()
        began = self._clock.reading()
        before = self.record
        try:
            shipment = await self._shipper.prepare(self.cell, before)
        finally:
            self._epochs.give_up(self._shipper.strays(self.name))
        async with self._turn:
            if self.over or self.record.rev != before.rev:
                self._epochs.give_up(shipment.keys if shipment is not None else ())
                return
            if shipment is None and not release and self._fresh_enough():
                return
            record = self._next(released=release)
            if shipment is not None:
                record = shipment.extend(record)
            if release and record.rev != self.cell.revision:
                raise AssertionError("a release must cover the cell's revision")
            await self._append(record, began)
        if shipment is not None and shipment.folded and not self.over:
            assert record.base is not None
            await self._shipper.settled_base(self.cell, record.base.rev)

    def _fresh_enough(self) -> bool:
        return self.lease.left(self._clock.reading()) >= self.lease.ttl * RENEW_BELOW

    async def renew(self) -> None:
        """Renew the lease with a record that changes nothing else."""
        async with self._turn:
            if not self.over and not self._fresh_enough():
                await self._append(self._next(), None)

    def _next(self, *, released: bool = False) -> EpochRecord:
        """The record after the newest one, with nothing changed but the epoch and the times."""
        wall = self._clock.reading().wall
        return replace(
            self.record,
            epoch=max(self.record.epoch, self._top) + 1,
            nonce=self._terms.fresh(),
            lease_expires_at=iso(wall if released else wall + self.lease.ttl),
            updated_at=iso(wall),
            delta=None,
            released=released,
        )

    async def _append(self, record: EpochRecord, began: Reading | None) -> None:
        lease, sent_at = self.lease, self._clock.monotonic()
        self._sent = max(self._sent, record.rev)
        self.touched = False
        # From the instant that a release is sent nothing may be served under this hold.
        self.released = record.released
        try:
            outcome = await self._epochs.append(record, lease)
        except CellBroken:
            # It lost, and what is there now cannot be read.
            self._lost(Seen(0, None))
            raise
        if isinstance(outcome, Lost):
            self._lost(outcome.seen)
            return
        self.append_secs = self._clock.monotonic() - sent_at
        previous, self.record, self.lease = self.record, replace(record, delta=None), outcome.lease
        self._epochs.supersede(previous, record)
        if began is not None:
            self._dirty_since = began if self.dirty else None
        self._terms.settled(self)
        self._tell()

    def _lost(self, seen: Seen) -> None:
        newest = seen.record
        if newest is not None and newest.nonce == self.record.nonce:
            # Another kind of server put a record in the way. Ours is still the state of the cell.
            self._top = seen.top
            self.released = False
            # Somebody waits for it, maybe: it is to be tried again.
            self.touched = True
            raise StoreFault(f"epoch {seen.top} was written by another server; going on after it")
        self.lost_to = seen
        log.warning(
            "cell fenced",
            cell=self.name,
            epoch=seen.top,
            owner=newest and newest.owner,
            unpublished=self.cell.revision - self.record.rev,
        )
        self._tell()
        self._terms.fenced(self)

    # Collection

    def has_garbage(self, now: float) -> bool:
        """Whether objects are to be deleted now."""
        garbage, unswept = self._epochs.garbage, self._epochs.unswept
        ripe = (bool(garbage) and garbage[0][0] + KEEP_SECS <= now) or (
            unswept is not None and unswept[0] + KEEP_SECS <= now
        )
        # Only the owner deletes; what is left is deleted when it is that again.
        return ripe and now >= self._collect_after and self.holds()

    async def collect(self) -> None:
        """Delete what settled records have stopped listing for long enough. Raises StoreFault."""
        epochs, now = self._epochs, self._clock.monotonic()
        # Whatever goes wrong is not tried again at once.
        self._collect_after = now + KEEP_SECS
        due = [keys for at, keys in epochs.garbage if at <= now]
        if await self._delete(frozenset[str]().union(*due)):
            epochs.garbage = epochs.garbage[len(due) :]
        if epochs.unswept is not None and epochs.unswept[0] + KEEP_SECS <= now:
            await self._sweep(epochs.unswept[1])

    async def _sweep(self, modified: float) -> None:
        """Delete what no record lists and was written before this term's claim."""
        listing = await self._terms.store.list(cell_prefix(self.name))
        # The store's servers may differ that much in what time it is.
        before = modified - self.record.ttl / 8 - GRAIN
        old = [entry.key for entry in listing.entries if entry.modified < before]
        kept = frozenset[str]().union(*(keys for _, keys in self._epochs.garbage))
        if await self._delete(lineage.unlisted(old, self.record) - kept):
            self._epochs.unswept = None

    async def _delete(self, keys: frozenset[str]) -> bool:
        """Delete as the owner; False where this node is that no longer."""
        keys -= self.record.keys
        if not self.holds():
            return False
        if keys:
            await self._terms.store.delete(sorted(keys))
        return True


def elsewhere(record: EpochRecord | None, wall: float) -> OwnedElsewhere:
    """The refusal that names the owner of `record`.

    An end of the lease that is past by the clock `wall` is left out: clients would spin on it. Only
    web addresses are handed out, for clients send their token there.
    """
    if record is None:
        return OwnedElsewhere("unknown", None, None)
    expires = record.lease_expires_at
    url = record.advertise
    return OwnedElsewhere(
        record.owner,
        None if record.released or expires <= iso(wall) else expires,
        url if url is not None and url.startswith(("http://", "https://")) else None,
    )
