"""One cell's epoch log in the bucket: looking at it, and appending to it until that is certain.

An append is sent again, the same bytes, until it is certain whether it won. At most one is under
way for a cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import structlog

from cellstore import lineage
from cellstore.clock import Clock, Reading
from cellstore.epochs import EpochRecord, ForeignRecord, decode, epoch_of, meta_key, meta_prefix
from cellstore.errors import CellBroken
from cellstore.objects import Listing, ObjectStore, Outcome, StoreFault
from cellstore.ownership import (
    MARGIN,
    Lease,
    Seen,
    Step,
    after_create,
    after_list,
    after_read,
    lease_from,
)

log = structlog.get_logger("cellstore.epochlog")

# Restores that began before a record was superseded are given this long to read what it listed.
KEEP_SECS = 60.0

# A cell that is left alone keeps at most so many superseded objects in the bucket.
_CLUTTER = 16

_FIRST_PAUSE = 0.05
_LAST_PAUSE = 2.0

# Nothing that a record superseded is deleted sooner, in seconds: who finds another's record at an
# epoch that early knows that it is the first one there.
_STILL_THERE = 30.0


@dataclass(frozen=True, slots=True)
class Won:
    """The record is the newest. `modified` is the store's time of it, where a list showed it."""

    record: EpochRecord
    lease: Lease
    modified: float | None


@dataclass(frozen=True, slots=True)
class Lost:
    """Another's record took its place or went past it; `seen` is what there is now.

    `never` says that the record certainly never was in the log, so that nobody can have built on
    it. Else it may have been there for a while.
    """

    seen: Seen
    never: bool


class _Attempt:
    """An append whose outcome is not certain yet."""

    def __init__(
        self, record: EpochRecord, lease: Lease | None, data: bytes, sent: Reading
    ) -> None:
        self.record = record
        self.lease = lease
        self.data = data
        self.step = Step.SEND
        self.outcome = Outcome.UNKNOWN
        self.modified: float | None = None
        self.never = False
        self.complained = False
        self.at = sent
        self._sent = sent
        self._date: float | None = None
        self._pauses = _pauses()

    def answered(self, at: Reading, date: float | None) -> None:
        """Note when an answer came, and when the store says that it was given."""
        self.at, self._date = at, date

    @property
    def age(self) -> float:
        """Seconds from the first time it was sent until the last answer."""
        return self.at.since(self._sent)

    def won_lease(self) -> Lease:
        return lease_from(self._sent, self.at, self._date, self.record.ttl)

    async def pause(self) -> None:
        await asyncio.sleep(next(self._pauses))


class EpochLog:
    """The log of one cell, as one process knows it."""

    def __init__(self, cell: str, store: ObjectStore, clock: Clock) -> None:
        self.cell = cell
        self._store = store
        self._clock = clock
        # The highest epoch known to have been there: lists need not start before it.
        self._known = 0
        self._watched: tuple[str, Reading] | None = None
        # What is to be deleted, and when: that outlives a hold of the cell.
        self.garbage: list[tuple[float, frozenset[str]]] = []
        # The claim before which others may have left something: when, here and by the store.
        self.unswept: tuple[float, float] | None = None
        self._swept_for: int | None = None
        # The newest record read, without its changes.
        self._last: EpochRecord | None = None

    def claimed(self, won: Won) -> None:
        """Note a claim. The first one of a term may find what others have left."""
        if won.modified is not None and self._swept_for != won.record.term:
            self._swept_for = won.record.term
            self.unswept = (self._clock.monotonic(), won.modified)

    def supersede(self, previous: EpochRecord, newest: EpochRecord) -> None:
        """Note what `newest`, which is settled, no longer lists of what `previous` did."""
        due = self._clock.monotonic() + KEEP_SECS
        self.garbage.append((due, lineage.garbage(previous, newest)))

    @property
    def cluttered(self) -> bool:
        """Whether enough is to be deleted that it should not be left lying there."""
        return sum(len(keys) for _, keys in self.garbage) > _CLUTTER

    def give_up(self, keys: Iterable[str]) -> None:
        """Note uploads that no record lists, nor ever will."""
        if given_up := frozenset(keys):
            self.garbage.append((self._clock.monotonic() + KEEP_SECS, given_up))

    def knows(self, epoch: int) -> None:
        """Remember that there was a record of `epoch`."""
        self._known = max(self._known, epoch)

    async def look(self) -> Seen:
        """What the log holds now. Raises StoreFault and CellBroken."""
        for pause in _pauses():
            listing = await self._newest()
            top = _top(listing)
            if top == 0:
                self._watched = None
                return Seen(0, None)
            record = await self._read(listing)
            if record is not None:
                return self._seen(listing, top, record)
            # It was collected since the list, so there is a newer one; or look at all of them.
            await asyncio.sleep(pause)
        raise AssertionError("pauses never end")

    def _seen(self, listing: Listing, top: int, record: EpochRecord) -> Seen:
        self.knows(top)
        now = self._clock.reading()
        if self._watched is None or self._watched[0] != record.nonce:
            self._watched = (record.nonce, now)
        age = None
        if listing.date is not None:
            age = listing.date - _modified(listing, record.epoch)
        # The clock that may be set has no say here: set forward it would end another's lease.
        return Seen(top, record, age, now.boot - self._watched[1].boot)

    async def append(self, record: EpochRecord, lease: Lease | None) -> Won | Lost:
        """Append `record`, which follows the newest settled one. Returns once that is certain.

        `lease` is the one held now, None for a claim. Goes on for as long as the bucket cannot be
        reached. Raises CellBroken where it lost and what is there now cannot be read.
        """
        attempt = _Attempt(record, lease, record.encode(), self._clock.reading())
        while attempt.step not in (Step.WON, Step.LOST):
            before = attempt.step
            try:
                await self._take(attempt)
            except StoreFault as fault:
                log.info("no answer", cell=self.cell, to=before.value, why=str(fault))
                await attempt.pause()
            except Exception:
                # An attempt that was sent is never given up: what comes after it would not know.
                if not attempt.complained:
                    log.exception("no answer", cell=self.cell, to=before.value)
                attempt.complained = True
                await attempt.pause()
            else:
                if attempt.step in (Step.SEND, Step.READ) and before is not Step.SEND:
                    # What was sent is not there, or not yet.
                    await attempt.pause()
        if attempt.step is Step.WON:
            self.knows(record.epoch)
            return Won(record, attempt.won_lease(), attempt.modified)
        while True:
            try:
                return Lost(await self.look(), attempt.never)
            except StoreFault as fault:
                log.info("no answer", cell=self.cell, to=Step.LOST.value, why=str(fault))
            await attempt.pause()

    async def _take(self, attempt: _Attempt) -> None:
        """Take the next step of an attempt. Raises StoreFault, and CellBroken."""
        record, key = attempt.record, meta_key(self.cell, attempt.record.epoch)
        match attempt.step:
            case Step.SEND:
                put = await self._store.create(key, attempt.data)
                attempt.outcome = put.outcome
                attempt.answered(self._clock.reading(), put.date)
                attempt.step = after_create(put.outcome, attempt.lease, attempt.at, put.date)
                if put.outcome is Outcome.UNKNOWN:
                    log.info("unknown", cell=self.cell, epoch=record.epoch, why=put.fault)
            case Step.READ:
                got = await self._store.get(key)
                attempt.answered(self._clock.reading(), got and got.date)
                found = got and self._nonce(got.data, record.epoch)
                attempt.step = after_read(attempt.outcome, record.nonce, found)
                attempt.never = attempt.step is Step.LOST and attempt.age < _STILL_THERE
            case _:
                # From before it: an empty answer must not pass for "nothing newer".
                listing = await self._newest(record.epoch - 1)
                attempt.answered(self._clock.reading(), listing.date)
                attempt.step = after_list(attempt.step, record.epoch, _top(listing))
                if attempt.step is Step.LOST:
                    # Nobody may build on it while its lease holds: the other was there before, and
                    # ours has filled the place of one that was collected.
                    holds = attempt.age < record.ttl * (1 - MARGIN)
                    attempt.never = holds and not record.released
                if attempt.step is Step.WON:
                    attempt.modified = _modified(listing, record.epoch)

    async def _newest(self, known: int | None = None) -> Listing:
        """The log's objects from just before the highest epoch known, or all if there are none."""
        known = self._known if known is None else known
        prefix = meta_prefix(self.cell)
        if known > 0:
            listing = await self._store.list(prefix, meta_key(self.cell, known - 1))
            if _top(listing):
                return listing
        listing = await self._store.list(prefix)
        if known > 0 and _top(listing) == 0:
            raise CellBroken("its records were there and are gone; restore them in the bucket")
        return listing

    async def _read(self, listing: Listing) -> EpochRecord | None:
        """The newest record of ours among what was listed; None when it is gone."""
        for entry in reversed(listing.entries):
            epoch = epoch_of(entry.key)
            if epoch is None:
                continue
            if self._last is not None and self._last.epoch == epoch == _top(listing):
                # The highest record never changes while it is that.
                return self._last
            got = await self._store.get(entry.key)
            if got is None:
                return None
            try:
                record = decode(got.data, self.cell, epoch)
            except ForeignRecord as fault:
                log.warning("record of another server", cell=self.cell, fault=str(fault))
                continue
            self._last = replace(record, delta=None)
            return record
        if self._known > 1:
            # Ours lies before what was listed.
            self._known = 0
            return None
        raise CellBroken("its records were all written by another server; adopt the prefix first")

    def _nonce(self, data: bytes, epoch: int) -> str:
        try:
            return decode(data, self.cell, epoch).nonce
        except (ForeignRecord, CellBroken):
            # Whatever it is, it is not what was sent.
            return ""


def _top(listing: Listing) -> int:
    return max((epoch_of(entry.key) or 0 for entry in listing.entries), default=0)


def _modified(listing: Listing, epoch: int) -> float:
    return next(entry.modified for entry in listing.entries if epoch_of(entry.key) == epoch)


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LAST_PAUSE)
