"""What was asked, answered and written in one run, held to the promises as it happens.

The first thing that must not be is a violation and ends the run. Three sources are compared: each
operation as it is executed in a copy, each answer, and each change of the bucket.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cellstore.epochs import epoch_of
from tests.fakes.bucket import Bucket, Mutation
from tests.simulation.bucketwatch import BucketWatch
from tests.simulation.versions import EMPTY, Version, after, plain

# Of a cell's copy: the versions that it went through, by revision.
Chain = dict[int, Version]
Place = tuple[str, int]

# Whether the form of each step is checked too, besides what comes of it.
STRICT = True


class Disk(Protocol):
    """A data directory as far as a history knows it; `chains` by cell and term."""

    chains: dict[Place, Chain]
    gone: bool


class Holder(Protocol):
    """A run of a process. `copies` are its open databases, `built` cells that it is founding."""

    name: str
    copies: dict[sqlite3.Connection, Place]
    built: dict[str, Version]

    @property
    def disk(self) -> Disk: ...

    def believes(self, cell: str) -> bool:
        """Whether it would answer for the cell now."""


@dataclass(eq=False, slots=True)
class Attempt:
    """One request as one node got it. `floor` is what was acknowledged before it was sent."""

    label: str
    cell: str
    operation: Any
    floor: Version
    holder: Holder
    seen: Version | None = None
    made: list[Version] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class CellHistory:
    """What is known of one cell. `top` is the newest record's epoch and `state` its version."""

    root: Version
    top: int = 0
    state: Version = field(init=False)
    # The newest version that an answer has told of.
    told: Version = field(init=False)
    # The version that each term began with.
    terms: dict[int, Version] = field(default_factory=dict)
    # By what a record lists, which says what it stands for.
    listed: dict[tuple[Any, ...], Version] = field(default_factory=dict)
    owner: Holder | None = None
    # The newest epoch of each holder, and the highest of a holder who has answered.
    epochs: dict[int, int] = field(default_factory=dict)
    answered: int = 0
    # Who has released it, and not claimed it since.
    released: set[int] = field(default_factory=set)
    unpublished: list[tuple[Version, Any, int]] = field(default_factory=list)
    lost: list[tuple[Version, Any, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = self.told = self.root


class History:
    """See above. `trace` has all events in order; `note` adds one."""

    def __init__(self, bucket: Bucket, now: Callable[[], float], *, ack_bucket: bool) -> None:
        self.cells: dict[str, CellHistory] = {}
        self.trace: list[tuple[Any, ...]] = []
        self.violations: list[str] = []
        self.nonces: dict[str, Holder] = {}
        self.counts = {"acked": 0, "refused": 0, "unknown": 0, "lost": 0}
        self.on_violation: Callable[[], object] = lambda: None
        self._now = now
        self._ack_bucket = ack_bucket
        self._bucket = bucket
        self.watch = BucketWatch(bucket, self.violate)
        bucket.hooks.append(self._changed)

    def note(self, *event: Any) -> None:
        self.trace.append((round(self._now(), 6), *event))

    def violate(self, what: str) -> None:
        self.note("VIOLATION", what)
        self.violations.append(what)
        self.on_violation()

    def cell(self, name: str) -> CellHistory:
        cell = self.cells.get(name)
        if cell is None:
            cell = self.cells[name] = CellHistory(Version(0, None, EMPTY, "nothing"))
        return cell

    # Requests

    def ask(self, label: str, cell: str, operation: Any, holder: Holder) -> Attempt:
        floor = self.cell(cell).told
        self.note("ask", label, holder.name, cell, type(operation).__name__)
        return Attempt(label, cell, operation, floor, holder)

    def execute(
        self, attempt: Attempt, connection: sqlite3.Connection, before: int, after_: int, got: Any
    ) -> None:
        """An operation was executed in a copy, and may yet be rolled back."""
        holder, name = attempt.holder, attempt.cell
        place = holder.copies.get(connection)
        if place is None:
            chain: Chain = {0: self.cell(name).root}
        else:
            chain = holder.disk.chains[place]
        parent = chain.get(before)
        if parent is None:
            self.violate(
                f"{attempt.label}: {holder.name} has {name} at revision {before}, where it never "
                f"was in {place}"
            )
            return
        state, expected = after(parent.state, attempt.operation)
        outcome = plain(attempt.operation, got)
        changed = after_ != before
        if outcome != expected or changed != (state is not None):
            self.violate(
                f"{attempt.label}: {holder.name} on {name} {parent} said {outcome!r}, "
                f"not {expected!r} (changed: {changed})"
            )
            return
        seen = parent
        if state is not None:
            seen = Version(after_, parent, state, attempt.label)
            attempt.made.append(seen)
            chain[after_] = seen
            if place is None:
                holder.built[name] = seen
        attempt.seen = seen
        self.note("exec", attempt.label, holder.name, seen.rev)

    def answer(self, attempt: Attempt) -> None:
        """A node answers a request as done; a condition that did not hold is an answer too."""
        cell, holder, label = self.cell(attempt.cell), attempt.holder, attempt.label
        seen = attempt.seen or cell.root
        changed = bool(attempt.made) and attempt.made[-1] is seen
        self.note("answer", label, holder.name, seen.rev, changed)
        self.counts["acked"] += 1
        published = cell.state.under(seen)
        if self._ack_bucket and not published:
            return self.violate(f"{label}: answered from {seen}, which is not in the bucket")
        if changed and not published and not seen.under(cell.state):
            return self.violate(f"{label}: {seen} was answered after {cell.state} overtook it")
        if not seen.under(attempt.floor):
            self._forgotten(attempt, cell, seen)
        epoch = cell.epochs.get(id(holder), 0)
        if attempt.seen is not None and not (changed and published):
            if epoch < cell.answered:
                return self.violate(
                    f"{label}: {holder.name} of epoch {epoch} answers after one of {cell.answered}"
                )
            if id(holder) in cell.released:
                return self.violate(f"{label}: {holder.name} answers after its release")
            cell.answered = epoch
        if seen.refused:
            return self.violate(f"{label}: {seen} was said not to be done")
        if changed and not seen.acked:
            seen.acked = True
            if not published:
                place = (attempt.cell, self._term(attempt))
                cell.unpublished.append((seen, holder.disk, place[1]))
        if seen.under(cell.told) or not cell.told.under(seen):
            cell.told = seen
        return None

    def _term(self, attempt: Attempt) -> int:
        terms = [
            term
            for (name, term), chain in attempt.holder.disk.chains.items()
            if name == attempt.cell and attempt.seen is not None
            if chain.get(attempt.seen.rev) is attempt.seen
        ]
        return max(terms, default=0)

    def _forgotten(self, attempt: Attempt, cell: CellHistory, seen: Version) -> None:
        """An answer lacks what was acknowledged before it was asked for. May that be lost?"""
        for version in attempt.floor.down_to(seen):
            if version.published or self._ack_bucket:
                self.violate(
                    f"{attempt.label}: answered from {seen}, without {version}, which was "
                    "acknowledged before"
                )
                return
            if version.acked and not any(version is lost for lost, _, _ in cell.lost):
                self.violate(
                    f"{attempt.label}: answered from {seen}, without {version}, which was "
                    "acknowledged before and not overtaken"
                )
                return

    def refuse(self, attempt: Attempt, why: str) -> None:
        """A node answers that a request is not done."""
        self.note("refuse", attempt.label, attempt.holder.name, why)
        self.counts["refused"] += 1
        state = self.cell(attempt.cell).state
        for version in attempt.made:
            version.refused = True
            if state.under(version):
                self.violate(
                    f"{attempt.label}: said not to be done, and {version} is in the bucket"
                )

    def leave_open(self, attempt: Attempt, why: str) -> None:
        """A request has ended, done or not."""
        self.note("unknown", attempt.label, attempt.holder.name, why)
        self.counts["unknown"] += 1

    # The bucket

    def _changed(self, mutation: Mutation) -> None:
        self.note("bucket", mutation.op, mutation.key)
        epoch = epoch_of(mutation.key)
        if epoch is None or "/meta/" not in mutation.key:
            self.watch.state_changed(mutation)
            return
        name = mutation.key.split("/")[1]
        cell = self.cell(name)
        if mutation.data is None:
            self.watch.record_gone(name, epoch)
            return
        if mutation.op != "create":
            if STRICT:
                self.violate(f"{mutation.key} was written by {mutation.op}")
            elif epoch == cell.top:
                self._overwritten(cell, mutation.data)
            return
        if epoch <= cell.top:
            self.note("filler", name, epoch)
            return
        if epoch != cell.top + 1:
            self.violate(f"{name}: epoch {epoch} follows {cell.top}")
            return
        found = self.watch.record_new(name, mutation.data)
        if found is not None:
            self._newest(name, cell, epoch, *found)

    def _overwritten(self, cell: CellHistory, data: bytes) -> None:
        """The newest record was replaced by one that holds the same."""
        holder = self.nonces[json.loads(data)["nonce"]]
        cell.owner = holder
        cell.epochs[id(holder)] = cell.top

    def _newest(
        self, name: str, cell: CellHistory, epoch: int, record: dict[str, Any], image: Any
    ) -> None:
        holder = self.nonces[record["nonce"]]
        self.note("epoch", name, epoch, holder.name, record["rev"], record["released"])
        version = self._version(name, cell, record, holder)
        if version is None:
            self.violate(f"{name}: epoch {epoch} is revision {record['rev']} of no copy")
            return
        cell.listed[_listed(record)] = version
        if record["term"] == epoch:
            cell.terms[epoch] = version
        if image.state() != version.state:
            self.violate(f"{name}: epoch {epoch} holds {image.state()}, not {version.state}")
            return
        if not version.under(cell.state):
            self.violate(f"{name}: epoch {epoch} of {version} leaves out {cell.state}")
            return
        previous = cell.owner
        if previous is not None and previous is not holder and previous.believes(name):
            self.violate(f"{name}: {holder.name} claims it while {previous.name} holds it")
            return
        for made in version.down_to(cell.state):
            made.published = True
            if made.refused:
                self.violate(f"{name}: epoch {epoch} has {made}, which was said not to be done")
                return
        cell.top, cell.state = epoch, version
        cell.owner = None if record["released"] else holder
        cell.epochs[id(holder)] = epoch
        (cell.released.add if record["released"] else cell.released.discard)(id(holder))
        chain = holder.disk.chains.get((name, record["term"]), {})
        self._sort_out(name, cell, record, version, chain, holder)
        if not version.under(cell.told) and chain.get(cell.told.rev) is not cell.told:
            # What was told of is in no copy that is still used.
            cell.told = version

    def _sort_out(
        self,
        name: str,
        cell: CellHistory,
        record: dict[str, Any],
        version: Version,
        chain: Chain,
        holder: Holder,
    ) -> None:
        """What was acknowledged and not published is published now, may yet be, or is lost."""
        left = []
        for made, disk, term in cell.unpublished:
            if version.under(made):
                continue
            kept = chain.get(made.rev) is made
            if kept and not record["released"]:
                left.append((made, disk, term))
            elif self._ack_bucket or (not disk.gone and record["term"] != record["epoch"]):
                self.violate(f"{name}: epoch {record['epoch']} leaves {made} out for good")
            else:
                self.note("lost", name, made.origin, made.rev)
                self.counts["lost"] += 1
                cell.lost.append((made, disk, term))
        cell.unpublished = left

    def _version(
        self, name: str, cell: CellHistory, record: dict[str, Any], holder: Holder
    ) -> Version | None:
        known = cell.listed.get(_listed(record))
        if known is not None:
            return known
        chain = holder.disk.chains.get((name, record["term"]))
        if chain is None:
            built = holder.built.get(name)
            return built if built is not None and built.rev == record["rev"] else None
        return chain.get(record["rev"])

    def opened(self, holder: Holder, connection: sqlite3.Connection, place: Place) -> None:
        """A process opens a copy."""
        holder.copies[connection] = place
        chains = holder.disk.chains
        if place not in chains:
            version = self.cell(place[0]).terms.get(place[1])
            if version is None:
                self.violate(f"{holder.name} opens {place}, a copy of a term that never began")
                version = self.cell(place[0]).root
            chains[place] = {version.rev: version}


def _listed(record: dict[str, Any]) -> tuple[Any, ...]:
    base = record["base"]
    return (
        record["rev"],
        base and base["key"],
        *((piece["sha256"], piece["from"]) for piece in record["pieces"]),
    )


class Traced:
    """An operation whose execution is noted. It stands in for the operation that it wraps."""

    __slots__ = ("_attempt", "_check", "_history", "absent", "statements")

    def __init__(self, attempt: Attempt, history: History, check: Callable[[], None]) -> None:
        self._attempt = attempt
        self._history = history
        # Called before a write; raises what keeps it from being written.
        self._check = check
        self.statements: int = attempt.operation.statements
        self.absent: Any = attempt.operation.absent

    def apply(self, connection: sqlite3.Connection, counters: Any) -> Any:
        if self.statements:
            self._check()
        before = counters.revision
        outcome = self._attempt.operation.apply(connection, counters)
        self._history.execute(self._attempt, connection, before, counters.revision, outcome)
        return outcome
