"""Who may own a cell, and whether what was attempted has succeeded: pure, from facts alone.

If a rule here is wrong, two nodes acknowledge for one cell and a record is lost or doubled. What
each rule keeps from happening is in docs/ownership.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cellstore.clock import Reading
from cellstore.epochs import EpochRecord
from cellstore.objects import Outcome

# The owner stops this much of the lease early: what it believes and what others see may differ.
MARGIN = 0.25

# Times of the store are whole seconds, and so is what others allow for that.
GRAIN = 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """This process to others. `disk` is the data directory, `boot` this run of it on this kernel.

    `ttl` is the length of its leases in seconds. `boots` are the earlier runs of the directory.
    """

    node: str
    advertise: str | None
    disk: str
    boot: str
    ttl: float
    boots: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Lease:
    """A hold of `ttl` seconds since `sent`, the instant before its record was first sent.

    `end` is when it ends by the store's clock; None where the store tells no time.
    """

    sent: Reading
    ttl: float
    end: float | None

    def holds(self, now: Reading) -> bool:
        """Whether the owner may still count on it."""
        return now.since(self.sent) < self.ttl * (1 - MARGIN)

    def left(self, now: Reading) -> float:
        """Seconds of the whole `ttl` that are left by the owner's clocks; may be negative."""
        return self.ttl - now.since(self.sent)

    def covers(self, now: Reading, date: float | None) -> bool:
        """Whether it held when an answer came: by the owner's clocks, and by the answer's date."""
        return self.holds(now) and (date is None or self.end is None or date < self.end)


def lease_from(sent: Reading, answered: Reading, date: float | None, ttl: float) -> Lease:
    """The lease that a record first sent at `sent` gives.

    `date` is the store's time in an answer that came at `answered`.
    """
    end = None if date is None else date - answered.since(sent) - GRAIN + ttl
    return Lease(sent, ttl, end)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a cell's epoch log showed.

    `top` is its highest epoch, 0 when there is none; `record` the newest that this kind of server
    wrote. `age` is the store's time less that of the record's writing, `watched` for how long this
    process has known the same record to be the newest; both in seconds.
    """

    top: int
    record: EpochRecord | None
    age: float | None = None
    watched: float = 0.0

    def left(self) -> float:
        """Seconds until the newest record's lease has certainly run out."""
        assert self.record is not None
        if self.age is not None:
            return self.record.ttl + GRAIN - self.age
        return self.record.ttl * 1.1 + GRAIN - self.watched


@dataclass(frozen=True, slots=True)
class Copy:
    """A local copy: its term, its newest revision, whether a record of it was ever settled."""

    term: int
    rev: int
    claimed: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Nobody has the cell: found it, with the local copy's content or a first write."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Claim it on the local copy, whose term goes on."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore the newest state, after `wait` seconds at least claim it in a new term."""

    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after `wait` seconds: the lease may have run out by then."""

    wait: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """Another owns it."""

    record: EpochRecord


@dataclass(frozen=True, slots=True)
class Vanished:
    """A copy says that there were records, or later ones, and there are none."""


Claim = Found | Reuse | Restore | Wait | Refuse | Vanished


def claim(seen: Seen, copy: Copy | None, me: Identity, waited: str | None = None) -> Claim:
    """What to do about a cell that this process does not own.

    `waited` is the nonce of a record whose lease was already waited for: where there is a newer
    one by now, its owner lives, and waiting on would end only when its clients are quiet.
    """
    record = seen.record
    if record is None:
        return Vanished() if copy is not None and copy.claimed else Found()
    if copy is not None and copy.claimed and copy.term > record.term:
        return Vanished()
    usable = (
        copy is not None
        and copy.term == record.term
        and record.disk == me.disk
        # A run that this directory never saw had a copy of it, and has written to that.
        and (record.boot == me.boot or record.boot in me.boots)
        and copy.rev >= record.rev
    )
    # On one disk and in one boot the directory's lock proves that the holder is dead.
    own = record.disk == me.disk and record.boot == me.boot
    left = 0.0 if record.released or own else seen.left()
    if left < 0 or record.released or own:
        return Reuse() if usable else Restore()
    renewed = waited is not None and record.nonce != waited
    if record.disk != me.disk and (renewed or left > record.ttl * MARGIN + 2 * GRAIN):
        return Refuse(record)
    # Its owner, if it lives, has stopped serving by now or is this node before a restart. Times
    # are whole seconds: the lease has run out when they exceed it, not when they meet it.
    wait = max(left, GRAIN / 4)
    return Wait(wait) if usable else Restore(wait)


class Step(Enum):
    """What is to be done about an attempt."""

    SEND = "send the same bytes"
    READ = "read the object that is there"
    CONFIRM = "list: ours must be the newest"
    LIST = "list: another's may be there"
    WON = "won"
    LOST = "lost"


def after_create(outcome: Outcome, lease: Lease | None, now: Reading, date: float | None) -> Step:
    """What the answer to a create means. `lease` is the one that was held when it was sent."""
    if outcome is not Outcome.CREATED:
        return Step.READ
    # One that slept may have filled the place of a record that was collected.
    return Step.WON if lease is not None and lease.covers(now, date) else Step.CONFIRM


def after_read(outcome: Outcome, nonce: str, found: str | None) -> Step:
    """What the object at our epoch means; `found` is its nonce, None when there is no object."""
    if found == nonce:
        return Step.CONFIRM
    if found is not None:
        return Step.LOST
    return Step.LIST if outcome is Outcome.EXISTS else Step.SEND


def after_list(step: Step, epoch: int, top: int) -> Step:
    """What the highest epoch means for an attempt at `epoch`."""
    if top > epoch:
        return Step.LOST
    if step is Step.CONFIRM:
        return Step.WON if top == epoch else Step.READ
    # There is one at our epoch after all: it may be our own that came late.
    return Step.READ if top == epoch else Step.SEND


class Verdict(Enum):
    """How a committed write is answered when the hold is gone."""

    SUCCESS = "it is in the lineage"
    ELSEWHERE = "it is nowhere but in the local copy"
    UNKNOWN = "a record that covers it may be in the lineage"


def after_fence(revision: int, settled: int, sent: int) -> Verdict:
    """Answer a write of `revision`.

    `settled` is the revision of the last settled record, `sent` the highest of all records that
    were sent, whatever became of them.
    """
    if revision <= settled:
        return Verdict.SUCCESS
    return Verdict.ELSEWHERE if revision > sent else Verdict.UNKNOWN
