"""Three nodes are killed, paused and cut off in random order while many runs are written.

Afterwards the clients' books are compared with what the fleet serves.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random  # noqa: TID251
from statistics import median
from typing import Any

from deploy.drills.clients import COUNTER, Appender, Party, crowd
from deploy.drills.drill import Options, owners, require, say
from deploy.drills.ledger import APPEND, SWAP, Entry, read_books
from deploy.drills.nodes import DrillFailed, Fleet, LocalNode, claims, in_orphan, local_fleet, wall
from deploy.drills.verdict import Orphan, Served, Trouble, Verdict, gap, judge, unanswered
from tests.support.client import Client

LEASE = 5.0
RUNS = 16
NODES = 3

# Seconds between two requests of one client, on average.
PACE = 0.1

KILL, PAUSE, CUT = "kill", "pause", "cut"


@dataclass(frozen=True, slots=True)
class Strike:
    """One thing to do: to which node, for how long, and how long to wait before the next.

    `hard` makes a cut silent, and a killed node lose its disk.
    """

    kind: str
    node: int
    seconds: float
    rest: float
    hard: bool


def plan(rng: Random, *, short: bool, wipes: bool) -> list[Strike]:
    """What is going to be done, all from the seed."""
    kills, others = (5, 2) if short else (30, 10)
    kinds = [KILL] * kills + [PAUSE] * others + [CUT] * others
    rng.shuffle(kinds)
    strikes = []
    for kind in kinds:
        # A killed node comes back at once, before its leases have run out, or long after.
        seconds = rng.choice([0.0, 0.0, 0.5, 1.6]) * LEASE
        if kind == PAUSE:
            seconds = rng.uniform(1.1, 2.0) * LEASE
        elif kind == CUT:
            seconds = rng.uniform(0.3, 2.2) * LEASE
        hard = rng.random() < (0.5 if kind == CUT else 0.2) and (kind == CUT or wipes)
        rest = rng.uniform(0.3, 4.0)
        strikes.append(Strike(kind, rng.randrange(NODES), seconds, rest, hard))
    return strikes


class Chaos:
    """Carries a plan out. At most two nodes are in trouble at once, and never one twice."""

    def __init__(self, fleet: Fleet) -> None:
        self.troubles: list[Trouble] = []
        self._fleet = fleet
        # Nodes in trouble: when that ends, since when it lasts, and what it is.
        self._sick: dict[int, tuple[float, float, Strike]] = {}

    def run(self, strikes: Sequence[Strike]) -> None:
        for strike in strikes:
            self._heal_until(lambda strike=strike: self._may(strike))  # type: ignore[misc]
            self._begin(strike)
            until = wall() + strike.rest
            self._heal_until(lambda until=until: wall() >= until)  # type: ignore[misc]
        self._heal_until(lambda: not self._sick)

    def _may(self, strike: Strike) -> bool:
        return strike.node not in self._sick and len(self._sick) < NODES - 1

    def _heal_until(self, condition: Any) -> None:
        while not condition():
            for number, (ends, _, _) in list(self._sick.items()):
                if wall() >= ends:
                    self._end(number)
            time.sleep(0.02)

    def _begin(self, strike: Strike) -> None:
        node, now = self._fleet.nodes[strike.node], wall()
        match strike.kind:
            case "kill":
                node.kill()
                if strike.hard:
                    node.wipe()
            case "pause":
                node.pause()
            case _:
                node.cut(silently=strike.hard)
        self._sick[strike.node] = now + strike.seconds, now, strike

    def _end(self, number: int) -> None:
        _, began, strike = self._sick.pop(number)
        node = self._fleet.nodes[number]
        match strike.kind:
            case "kill":
                node.start()
            case "pause":
                node.resume()
            case _:
                node.mend()
        self.troubles.append(Trouble(node.name, strike.kind, began, wall()))


def drill(options: Options) -> None:
    for ack in options.acks:
        _one(options, ack)


def _one(options: Options, ack: str) -> None:
    rng = options.rng()
    folder = options.place(f"chaos-{ack}")
    strikes = plan(rng, short=options.short, wipes=ack == "bucket")
    runs = [f"run-{number:02d}" for number in range(RUNS)]
    say(f"--ack {ack}, lease {LEASE:g} s, {RUNS} runs: {describe(strikes)}")
    flags = ["--lease-secs", f"{LEASE:g}", "--ack", ack]
    with local_fleet(folder, NODES, flags, broken=options.broken) as fleet:
        for node in fleet.nodes:
            node.launch()
        for node in fleet.nodes:
            node.wait_until_ready()
        parties = crowd(fleet.nodes, folder / "books", runs, rng, PACE)
        for party in parties:
            party.start()
        chaos = Chaos(fleet)
        began = wall()
        try:
            chaos.run(strikes)
            _await_one_more(parties)
        finally:
            for party in parties:
                party.leave()
            for party in parties:
                party.join()
        _check_alive(parties)
        seconds = wall() - began
        served = {run: _served(fleet, run) for run in runs}
        entries = read_books(folder / "books")
        verdict = judge(
            entries,
            served,
            claims(fleet.nodes),
            _orphans(fleet.nodes),
            chaos.troubles,
            ack_bucket=ack == "bucket",
            max_lag=LEASE,
        )
        _report(seconds, entries, verdict, chaos.troubles)
        say(f"who owns what now: {owners(fleet.nodes)}")
        require(verdict.faults)


def describe(strikes: Sequence[Strike]) -> str:
    kinds = [strike.kind for strike in strikes]
    wiped = sum(strike.kind == KILL and strike.hard for strike in strikes)
    return (
        f"{kinds.count(KILL)} kills ({wiped} of them lose the disk), "
        f"{kinds.count(PAUSE)} pauses, {kinds.count(CUT)} cuts"
    )


def _check_alive(parties: Sequence[Party]) -> None:
    for party in parties:
        if party.fault is not None:
            raise DrillFailed(f"client {party.client} failed") from party.fault


def _await_one_more(parties: Sequence[Party]) -> None:
    """After all trouble every run must be written again."""
    before = {party: party.done for party in parties if isinstance(party, Appender)}
    deadline = wall() + 12 * LEASE
    while stuck := [party for party, done in before.items() if party.done == done]:
        if wall() > deadline:
            _check_alive(parties)
            names = ", ".join(party.client for party in stuck)
            raise DrillFailed(f"no write came through {12 * LEASE:g} s after all trouble: {names}")
        time.sleep(0.05)


def _served(fleet: Fleet, run: str) -> Served:
    """What the fleet serves of a run, from whichever node does."""
    deadline = wall() + 12 * LEASE
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
            records = dict(in_orphan(path, "SELECT seq, CAST(data AS TEXT) FROM records"))
            values = in_orphan(path, "SELECT data FROM blobs WHERE key = ?", COUNTER)
            value = values[0][0].decode() if values else None
            found.append(Orphan(node.name, cell, int(term), records, value))
    return found


def _report(
    seconds: float, entries: Sequence[Entry], verdict: Verdict, troubles: Sequence[Trouble]
) -> None:
    appends = [entry for entry in entries if entry.what == APPEND]
    by_run: dict[str, list[Entry]] = defaultdict(list)
    for entry in appends:
        by_run[entry.run].append(entry)
    latencies = sorted(
        (entry.answered or 0.0) - entry.sent for entry in appends if entry.acknowledged
    )
    swaps = sum(entry.what == SWAP and entry.acknowledged for entry in entries)
    say(
        f"{seconds:.0f} s; {len(latencies)} appends and {swaps} swaps acknowledged, "
        f"{unanswered(appends)} appends without a certain answer; "
        f"latency median {median(latencies) * 1e3:.1f} ms, worst {latencies[-1]:.1f} s"
    )
    worst = sorted(((gap(mine), run) for run, mine in by_run.items()), reverse=True)
    longest = ", ".join(f"{run} {length:.1f} s" for (length, _), run in worst[:4])
    typical = median(length for (length, _), _ in worst)
    say(f"longest time without a write: {longest}; the median run's {typical:.1f} s")
    if verdict.lost:
        runs = sorted({entry.run for entry in verdict.lost})
        say(
            f"{len(verdict.lost)} acknowledged writes of {len(runs)} runs were unpublished when "
            "their node was parted from them; all lie in its orphans"
        )
    else:
        say("no acknowledged write was lost")
