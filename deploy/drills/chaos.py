"""Three nodes are killed, paused and cut off in random order while many runs are written.

Afterwards the clients' books are compared with what the fleet serves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random  # noqa: TID251

from deploy.drills.drill import Options, owned, say
from deploy.drills.evidence import Terms, compare, writing
from deploy.drills.nodes import Fleet, LocalNode, local_fleet, wall
from deploy.drills.verdict import Trouble

LEASE = 5.0
RUNS = 16
NODES = 3

# Seconds between two requests of one client, on average.
PACE = 0.1

# One node closes cells all the time, for want of use or of room.
CRAMPED = ("--idle-secs", "1", "--max-open-cells", "12")

KILL, PAUSE, CUT = "kill", "pause", "cut"


@dataclass(frozen=True, slots=True)
class Strike:
    """One thing to do: to which node, for how long, and how long to wait before the next.

    Without a `node` it is the one that owns most. `hard` makes a cut silent, and a killed node
    lose its disk.
    """

    kind: str
    node: int | None
    seconds: float
    rest: float
    hard: bool


def plan(rng: Random, *, short: bool, wipes: bool) -> list[Strike]:
    """What is going to be done, all from the seed."""
    kills, others = (5, 2) if short else (30, 10)
    kinds = [KILL] * kills + [PAUSE] * others + [CUT] * others
    rng.shuffle(kinds)
    strikes = []
    cuts = 0
    for kind in kinds:
        # A killed node comes back at once, before its leases have run out, or long after.
        seconds = rng.choice([0.0, 0.0, 0.5, 1.6]) * LEASE
        if kind == PAUSE:
            seconds = rng.uniform(1.1, 2.0) * LEASE
        elif kind == CUT:
            # Half of them are over before another node can take over, in half of them it does.
            seconds = (rng.uniform(0.3, 1.0) if cuts % 2 else rng.uniform(2.2, 3.0)) * LEASE
            cuts += 1
        hard = rng.random() < (0.5 if kind == CUT else 0.2) and (kind == CUT or wipes)
        rest = rng.uniform(0.3, 4.0)
        node = None if rng.random() < 0.6 else rng.randrange(NODES)
        strikes.append(Strike(kind, node, seconds, rest, hard))
    return strikes


class Chaos:
    """Carries a plan out. At most two nodes are in trouble at once, and never one twice."""

    def __init__(self, fleet: Fleet) -> None:
        self.troubles: list[Trouble] = []
        self._nodes = fleet.nodes
        # Nodes in trouble: when that ends, since when it lasts, and what it is.
        self._sick: dict[LocalNode, tuple[float, float, Strike]] = {}

    def run(self, strikes: Sequence[Strike]) -> None:
        for strike in strikes:
            while (node := self._target(strike)) is None:
                self._pass_time()
            self._begin(node, strike)
            until = wall() + strike.rest
            while wall() < until:
                self._pass_time()
        while self._sick:
            self._pass_time()

    def _target(self, strike: Strike) -> LocalNode | None:
        """Whom a strike hits, once it may."""
        if len(self._sick) == NODES - 1:
            return None
        if strike.node is not None:
            node = self._nodes[strike.node]
            return None if node in self._sick else node
        return max((node for node in self._nodes if node not in self._sick), key=owned)

    def _pass_time(self) -> None:
        for node, (ends, _, _) in list(self._sick.items()):
            if wall() >= ends:
                self._end(node)
        time.sleep(0.02)

    def _begin(self, node: LocalNode, strike: Strike) -> None:
        now = wall()
        match strike.kind:
            case "kill":
                node.kill()
                if strike.hard:
                    node.wipe()
            case "pause":
                node.pause()
            case _:
                node.cut(silently=strike.hard)
        self._sick[node] = now + strike.seconds, now, strike

    def _end(self, node: LocalNode) -> None:
        _, began, strike = self._sick.pop(node)
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
    strikes = plan(rng, short=options.short, wipes=ack == "bucket")
    runs = [f"run-{number:02d}" for number in range(RUNS)]
    say(f"--ack {ack}, lease {LEASE:g} s, {RUNS} runs: {describe(strikes)}")
    flags = ["--lease-secs", f"{LEASE:g}", "--ack", ack]
    folder = options.place(f"chaos-{ack}")
    with local_fleet(folder, NODES, flags, last=CRAMPED, broken=options.broken) as fleet:
        fleet.start()
        chaos = Chaos(fleet)
        with writing(fleet, runs, rng, PACE):
            chaos.run(strikes)
        compare(fleet, runs, Terms(ack == "bucket", LEASE), chaos.troubles)


def describe(strikes: Sequence[Strike]) -> str:
    kinds = [strike.kind for strike in strikes]
    wiped = sum(strike.kind == KILL and strike.hard for strike in strikes)
    return (
        f"{kinds.count(KILL)} kills ({wiped} of them lose the disk), "
        f"{kinds.count(PAUSE)} pauses, {kinds.count(CUT)} cuts"
    )
