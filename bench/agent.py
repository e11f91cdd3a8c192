"""The scenario of a real agent: what durability in a run store adds to its time."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.figures import Figure, Target, alternate
from bench.requests import TOKEN
from bench.servers import Bench
from tests.support.processes import Process, clean_environment
from tests.support.reference import binary

_AGENT = Path(__file__).parent / "agents" / "ledger.ts"
_CALLS = 300
_ALONE = "alone"


def agent(bench: Bench) -> Iterator[Figure]:
    """An agent of 300 host calls, each durable before the next; the client is the reference's."""
    if not bench.has_reference:
        return
    rounds = 9
    with bench.warm_servers() as servers:
        sides: dict[str, Callable[[int], float]] = {
            side: _runs(bench, server) for side, server in servers.items()
        }
        sides[_ALONE] = _runs(bench, None)
        alternate(range(1), sides)
        taken = alternate(range(rounds), sides)
    alone = taken[_ALONE]
    added = {
        side: [whole - without for whole, without in zip(taken[side], alone, strict=True)]
        for side in servers
    }
    name = f"agent of {_CALLS} host calls"
    yield Figure("agent", f"{name}, time added to {median(alone):.2f} s", "s", added, Target(1.2))
    yield Figure("agent", f"{name}, whole time", "s", taken)


def _runs(bench: Bench, server: Process | None) -> Callable[[int], float]:
    environment = clean_environment() | {"CHIDORI_DURABILITY": "strict"}
    if server is not None:
        environment |= {"CHIDORI_RUN_STORE": server.url, "CHIDORI_RUN_STORE_TOKEN": TOKEN}
    command = [str(binary()), "run", _AGENT.name, "-i", f"n={_CALLS}", "--trusted"]

    def measure(_: int) -> float:
        # The client keeps files beside the agent, whatever the store.
        folder = bench.fresh("agent")
        folder.mkdir()
        shutil.copy(_AGENT, folder)
        started = perf_counter()
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return perf_counter() - started

    return measure
