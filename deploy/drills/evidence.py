"""What is gathered when clients have written for a while, and how it is told."""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random  # noqa: TID251
from statistics import median

from deploy.drills import clients
from deploy.drills.clients import COUNTER, Appender, Party, crowd
from deploy.drills.drill import owners, require, say
from deploy.drills.ledger import APPEND, SWAP, Entry, read_books
from deploy.drills.nodes import (
    PATIENCE,
    DrillFailed,
    Fleet,
    LocalNode,
    Node,
    claims,
    in_orphan,
    status,
    wall,
)
from deploy.drills.verdict import Orphan, Served, Trouble, Verdict, gap, judge, unanswered
from tests.support.client import Client

BOOKS = "books"


@dataclass(frozen=True, slots=True)
class Terms:
    """What was promised: see `judge`."""

    ack_bucket: bool
    max_lag: float


@contextmanager
def writing(
    fleet: Fleet,
    runs: Sequence[str],
    rng: Random,
    pace: float,
    patience: float = clients.PATIENCE,
) -> Iterator[list[Party]]:
    """Have clients write as long as the body lasts, and until each run was written once more."""
    parties = crowd(fleet.nodes, fleet.folder / BOOKS, runs, rng, pace, patience)
    for party in parties:
        party.start()
    try:
        yield parties
        _await_one_more(parties)
    finally:
        for party in parties:
            party.leave()
        for party in parties:
            party.join()
    _check_alive(parties)


def compare(
    fleet: Fleet, runs: Sequence[str], terms: Terms, troubles: Sequence[Trouble] = ()
) -> None:
    """Compare the books with what the fleet serves now. Raises DrillFailed where they differ."""
    served_now = {run: _served(fleet, run) for run in runs}
    entries = read_books(fleet.folder / BOOKS)
    verdict = judge(
        entries,
        served_now,
        claims(fleet.nodes),
        _orphans(fleet.nodes),
        troubles,
        ack_bucket=terms.ack_bucket,
        max_lag=terms.max_lag,
    )
    _report(entries, verdict, troubles)
    say(f"cells owned now: {owners(fleet.nodes)}")
    require(verdict.faults)


def await_published(nodes: Sequence[Node], seconds: float = PATIENCE) -> float:
    """Wait until every open cell is in the bucket. Returns how long that took."""
    began = wall()
    while True:
        waiting = [
            cell["cell"]
            for node in nodes
            for cell in status(node)["cells"]
            if not cell["replicated"]
        ]
        if not waiting:
            return wall() - began
        if wall() - began > seconds:
            raise DrillFailed(f"not in the bucket after {seconds:g} s: {', '.join(waiting[:8])}")
        time.sleep(0.05)


def _check_alive(parties: Sequence[Party]) -> None:
    for party in parties:
        if party.fault is not None:
            raise DrillFailed(f"client {party.client} failed") from party.fault


def _await_one_more(parties: Sequence[Party]) -> None:
    """After all trouble every run must be written again."""
    before = {party: party.done for party in parties if isinstance(party, Appender)}
    deadline = wall() + PATIENCE
    while stuck := [party for party, done in before.items() if party.done == done]:
        if wall() > deadline:
            _check_alive(parties)
            names = ", ".join(party.client for party in stuck)
            raise DrillFailed(f"no write came through {PATIENCE:g} s after all trouble: {names}")
        time.sleep(0.05)


def _served(fleet: Fleet, run: str) -> Served:
    """What the fleet serves of a run, from whichever node does."""
    deadline = wall() + PATIENCE
    for node in itertools.cycle(fleet.nodes):
        with Client(node.url) as client:
            records = client.get(f"/runs/{run}/records")
            value = client.get(f"/runs/{run}/blobs/{COUNTER}")
        if records.status in {200, 404} and value.status in {200, 404}:
            texts = [_compact(record) for record in records.json()] if records.status == 200 else []
            return Served(texts, value.text if value.status == 200 else None)
        if wall() > deadline:
            raise DrillFailed(f"run {run} is served by no node: {records.status} {records.text}")
        time.sleep(0.1)
    raise AssertionError


def _compact(record: object) -> str:
    return json.dumps(record)


def _orphans(nodes: Sequence[LocalNode]) -> list[Orphan]:
    found = []
    for node in nodes:
        for path in node.orphans():
            cell, term = path.name.split(".")[:2]
            hint = json.loads((path / "epoch.json").read_bytes())
            query = "SELECT seq, CAST(data AS TEXT) FROM records WHERE rev > ?"
            records = dict(in_orphan(path, query, hint["rev"]))
            values = in_orphan(path, "SELECT data FROM blobs WHERE key = ?", COUNTER)
            value = values[0][0].decode() if values else None
            found.append(Orphan(node.name, cell, int(term), records, value))
    return found


def _report(entries: Sequence[Entry], verdict: Verdict, troubles: Sequence[Trouble]) -> None:
    appends = [entry for entry in entries if entry.what == APPEND]
    by_run: dict[str, list[Entry]] = defaultdict(list)
    for entry in appends:
        by_run[entry.run].append(entry)
    latencies = sorted(
        (entry.answered or 0.0) - entry.sent for entry in appends if entry.acknowledged
    )
    swaps = sum(entry.what == SWAP and entry.acknowledged for entry in entries)
    seconds = entries[-1].sent - entries[0].sent
    say(
        f"{seconds:.0f} s; {len(latencies)} appends and {swaps} swaps acknowledged, "
        f"{unanswered(appends)} appends without a certain answer; "
        f"latency median {median(latencies) * 1e3:.1f} ms, worst {latencies[-1]:.1f} s"
    )
    worst = sorted(((gap(mine), run) for run, mine in by_run.items()), reverse=True)
    longest = ", ".join(f"{run} {length:.1f} s" for (length, _), run in worst[:4])
    typical = median(length for (length, _), _ in worst)
    say(f"longest time without a write: {longest}; the median run's {typical:.1f} s")
    (length, since), run = worst[0]
    meanwhile = ", ".join(
        f"{trouble.node} {trouble.kind} {trouble.began - since:+.1f} to "
        f"{trouble.ended - since:+.1f}"
        for trouble in troubles
        if trouble.began < since + length and trouble.ended > since
    )
    if meanwhile:
        say(f"while {run} waited {length:.1f} s, in seconds from its last write: {meanwhile}")
    if verdict.lost:
        runs = sorted({entry.run for entry in verdict.lost})
        say(
            f"{len(verdict.lost)} acknowledged writes of {len(runs)} runs were unpublished when "
            "their node was parted from them; all lie in its orphans"
        )
    else:
        say("no acknowledged write was lost, none is there twice")
