"""Nodes are stopped and started one after another, as for an upgrade: nothing is lost, few wait."""

from __future__ import annotations

import time

from deploy.drills.drill import Options, require, say
from deploy.drills.evidence import Terms, compare, writing
from deploy.drills.nodes import local_fleet, wall

LEASE = 10.0
NODES = 3
PACE = 0.1
RUNS = [f"run-{number:02d}" for number in range(16)]


def drill(options: Options) -> None:
    for ack in options.acks:
        _one(options, ack)


def _one(options: Options, ack: str) -> None:
    rounds = 1 if options.short else 3
    say(f"--ack {ack}, lease {LEASE:g} s, {len(RUNS)} runs: {rounds} times round {NODES} nodes")
    flags = ["--lease-secs", f"{LEASE:g}", "--ack", ack]
    folder = options.place(f"rolling-{ack}")
    faults, stops = [], []
    with local_fleet(folder, NODES, flags, broken=options.broken) as fleet:
        fleet.start()
        with writing(fleet, RUNS, options.rng(), PACE):
            for node in fleet.nodes * rounds:
                time.sleep(2.0)
                began = wall()
                code = node.stop()
                stops.append(wall() - began)
                if code != 0:
                    faults.append(f"{node.name} ended with {code}")
                node.start()
        say(f"the slowest of {len(stops)} stops took {max(stops):.1f} s")
        faults += [
            f"{node.name} kept an orphan: {path}" for node in fleet.nodes for path in node.orphans()
        ]
        # Whatever it acknowledges by, a node that is asked to stop loses nothing.
        compare(fleet, RUNS, Terms(ack_bucket=True, max_lag=LEASE))
        require(faults)
