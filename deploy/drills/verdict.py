"""Compares the clients' books with what the fleet serves, and says what does not agree.

Pure: everything is handed in. What a run may have lost under `--ack disk`, and what proves that it
was lost as promised, is in `_excused`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from deploy.drills.clients import EXPECTED
from deploy.drills.ledger import APPEND, NO_ANSWER, SWAP, Entry
from deploy.drills.nodes import Claim

# What the clocks of the drill and of an answer under way may add, in seconds.
SLACK = 1.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that was done to a node, from `began` until `ended` by the wall clock."""

    node: str
    kind: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Orphan:
    """What an orphan on a node's disk holds of a run.

    `records` are those that were not published, by seq; `value` is what was swapped in last.
    """

    node: str
    cell: str
    term: int
    records: Mapping[int, str]
    value: str | None


@dataclass(frozen=True, slots=True)
class Served:
    """What the fleet serves of a run in the end."""

    records: Sequence[str]
    value: str | None


@dataclass(slots=True)
class Verdict:
    """`faults` are broken promises; `lost` what was lost as `--ack disk` allows."""

    faults: list[str] = field(default_factory=list)
    lost: list[Entry] = field(default_factory=list)


def judge(
    entries: Sequence[Entry],
    served: Mapping[str, Served],
    claims: Sequence[Claim],
    orphans: Sequence[Orphan],
    troubles: Sequence[Trouble],
    *,
    ack_bucket: bool,
    max_lag: float,
) -> Verdict:
    """All that the books and the fleet disagree on."""
    verdict = Verdict()
    by_run: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_run[entry.run].append(entry)
    taken = _periods(claims)
    for run, book in sorted(by_run.items()):
        faults = [
            f"run {run}: {entry.what} {entry.key} was answered {entry.status} by {entry.node}"
            for entry in book
            if entry.status not in EXPECTED
        ]

        def excuse(entry: Entry, run: str = run, book: list[Entry] = book) -> str | None:
            if ack_bucket:
                return "under --ack bucket"
            parents = {swap.key: swap.parent for swap in book if swap.what == SWAP}
            holding = [orphan for orphan in orphans if _holds(orphan, entry, parents)]
            return _excused(entry, holding, taken[run], troubles, max_lag)

        faults += _records(run, book, served[run], excuse, verdict.lost)
        faults += _swaps(run, book, served[run], excuse, verdict.lost)
        faults += _owners(run, book, taken[run])
        faults += _stale_reads(run, book, [] if ack_bucket else orphans)
        verdict.faults += faults
    if not ack_bucket:
        verdict.faults += _spans(verdict.lost, troubles, max_lag)
    return verdict


Excuse = Callable[[Entry], str | None]


def _records(
    run: str, book: Sequence[Entry], served: Served, excuse: Excuse, lost: list[Entry]
) -> Iterable[str]:
    appends = [entry for entry in book if entry.what == APPEND]
    sent: dict[int, list[Entry]] = defaultdict(list)
    for entry in appends:
        sent[entry.seq].append(entry)
    there = [(json.loads(text)["seq"], text) for text in served.records]
    times = Counter(seq for seq, _ in there)
    for seq, count in times.items():
        if count > 1:
            yield f"run {run}: seq {seq} is there {count} times"
        if seq not in sent:
            yield f"run {run}: seq {seq} is there and was never sent"
        elif all(entry.status == 409 for entry in sent[seq]):
            yield f"run {run}: seq {seq} is there and was answered 409 only"
    for seq, text in there:
        if seq in sent and json.loads(text) != json.loads(sent[seq][0].text):
            yield f"run {run}: seq {seq} is not what was sent"
    if [seq for seq, _ in there] != sorted(seq for seq, _ in there):
        yield f"run {run}: records are out of order"
    for entry in appends:
        if entry.acknowledged and entry.seq not in times:
            why_not = excuse(entry)
            if why_not is None:
                lost.append(entry)
            else:
                yield f"run {run}: seq {entry.key}, acknowledged by {entry.node}, is lost {why_not}"


def _swaps(
    run: str, book: Sequence[Entry], served: Served, excuse: Excuse, lost: list[Entry]
) -> Iterable[str]:
    swaps = [entry for entry in book if entry.what == SWAP]
    parents = {entry.key: entry.parent for entry in swaps}
    kept = chain(served.value, parents)
    outcomes: dict[str, set[int]] = defaultdict(set)
    for entry in swaps:
        outcomes[entry.key].add(entry.status)
        if entry.acknowledged and entry.key not in kept:
            why_not = excuse(entry)
            if why_not is None:
                lost.append(entry)
            else:
                yield (
                    f"run {run}: swap {entry.key}, acknowledged by {entry.node}, "
                    f"is no link of what is there, lost {why_not}"
                )
    for key in kept:
        if outcomes.get(key, set()) <= {409, 412}:
            yield f"run {run}: swap {key} counted and was answered {outcomes.get(key)}"


def chain(value: str | None, parents: Mapping[str, str | None]) -> set[str]:
    """The names of all values that led to `value`, and its own."""
    found: set[str] = set()
    name = None if value is None else json.loads(value)["id"]
    while name is not None and name not in found:
        found.add(name)
        name = parents.get(name)
    return found


# Who owned a cell when: the claim, and when the next one by another node was logged.
Period = tuple[Claim, float, float]


def _periods(claims: Sequence[Claim]) -> dict[str, list[Period]]:
    by_cell: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        by_cell[claim.cell].append(claim)
    periods: dict[str, list[Period]] = defaultdict(list)
    for cell, mine in by_cell.items():
        for at, claim in enumerate(mine):
            others = (_time(later) for later in mine[at + 1 :] if later.node != claim.node)
            periods[cell].append((claim, _time(claim), next(others, float("inf"))))
    return periods


def _time(claim: Claim) -> float:
    return datetime.fromisoformat(claim.at).timestamp()


def _owners(run: str, book: Sequence[Entry], periods: Sequence[Period]) -> Iterable[str]:
    """Whatever a node answered 200 it answered while it owned the cell by the claims."""
    for entry in book:
        if not entry.acknowledged:
            continue
        assert entry.answered is not None
        if not any(
            claim.node == entry.node and began <= entry.answered and entry.sent <= ended
            for claim, began, ended in periods
        ):
            yield (
                f"run {run}: two owners: {entry.node} did {entry.what} {entry.key} "
                f"(sent {entry.sent:.3f}, answered {entry.answered:.3f}) and did not own it then"
            )


def _stale_reads(run: str, book: Sequence[Entry], orphans: Sequence[Orphan]) -> Iterable[str]:
    """Each read shows what was acknowledged before it was sent, but for what became an orphan.

    A later journal of its client may have brought that back.
    """
    acknowledged = sorted(
        (entry.answered or 0.0, entry.seq)
        for entry in book
        if entry.what == APPEND
        and entry.acknowledged
        and not any(_holds(orphan, entry, {}) for orphan in orphans)
    )
    at = highest = 0
    for entry in book:
        if not (entry.saw and entry.acknowledged):
            continue
        while at < len(acknowledged) and acknowledged[at][0] < entry.sent:
            highest = max(highest, acknowledged[at][1])
            at += 1
        if entry.saw < highest:
            yield (
                f"run {run}: {entry.node} served a journal up to seq {entry.saw} "
                f"when {highest} had been acknowledged"
            )


def _excused(
    entry: Entry,
    holding: Sequence[Orphan],
    periods: Sequence[Period],
    troubles: Sequence[Trouble],
    max_lag: float,
) -> str | None:
    """Why a loss was not allowed under `--ack disk`; None if it was.

    It is allowed if the write lies in an orphan of the node that acknowledged it (`holding` are
    those that do hold it), another node did take over, and the node was in trouble not longer
    after the write than what may be unpublished.
    """
    assert entry.answered is not None
    if not holding:
        return "and is in no orphan of that node"
    if not any(
        claim.node != entry.node and any(claim.term > orphan.term for orphan in holding)
        for claim, _, _ in periods
    ):
        return "though no other node took over"
    near = (
        trouble.began - max_lag - SLACK <= entry.answered <= trouble.ended + SLACK
        for trouble in troubles
        if trouble.node == entry.node
    )
    return None if any(near) else f"and that node was well within {max_lag:g} s after"


def _holds(orphan: Orphan, entry: Entry, parents: Mapping[str, str | None]) -> bool:
    if (orphan.node, orphan.cell) != (entry.node, entry.run):
        return False
    if entry.what == APPEND:
        text = orphan.records.get(entry.seq)
        return text is not None and json.loads(text) == json.loads(entry.text)
    return entry.key in chain(orphan.value, parents)


def _spans(lost: Sequence[Entry], troubles: Sequence[Trouble], max_lag: float) -> Iterable[str]:
    """What one takeover lost of a run was acknowledged within the lag that is allowed."""
    groups: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for entry in lost:
        ends = [
            number
            for number, trouble in enumerate(troubles)
            if trouble.node == entry.node and entry.answered <= trouble.ended + SLACK  # type: ignore[operator]
        ]
        groups[entry.run, entry.node, min(ends, default=-1)].append(entry.answered or 0.0)
    for (run, node, _), times in groups.items():
        if max(times) - min(times) > max_lag + SLACK:
            yield f"run {run}: {node} lost writes of {max(times) - min(times):.1f} s"


def gap(entries: Iterable[Entry]) -> tuple[float, float]:
    """The longest time without an acknowledgement in one client's book, and when it began."""
    times = [entry.answered or 0.0 for entry in entries if entry.acknowledged]
    gaps = [(later - earlier, earlier) for earlier, later in pairwise(times)]
    return max(gaps, default=(0.0, 0.0))


def unanswered(entries: Iterable[Entry]) -> int:
    """How many requests had no certain outcome."""
    return sum(entry.status in {NO_ANSWER, 503} for entry in entries)
