"""The scenarios about many cells: what they cost in memory, and how fast one wakes."""

from __future__ import annotations

from collections.abc import Iterator

from bench.bare import p50
from bench.figures import HTTP, SQLITE, Figure, alternate, each
from bench.requests import Work
from bench.servers import Bench, open_cells, wait_hibernated
from tests.support.processes import Process

_CELLS = 2000
_CONNECTIONS = 8
# Long enough to open all cells on a busy machine; it is waited for once.
_IDLE_SECS = 25


def memory(bench: Bench) -> Iterator[Figure]:
    """2,000 cells open, and then the same node with all of them hibernated."""
    taken: dict[tuple[str, str], dict[str, list[float]]] = {}

    def note(state: str, side: str, server: Process, empty: int) -> None:
        resident = server.resident_kib()
        for name, unit, value in (
            (f"{state}: resident", "MiB", resident / 1024),
            (f"{state}: a cell adds", "KiB", (resident - empty) / _CELLS),
            (f"{state}: descriptors", "", float(server.descriptors())),
        ):
            taken.setdefault((name, unit), {})[side] = [value]

    options = ("--idle-secs", str(_IDLE_SECS))
    limit = ("--max-open-cells", str(_CELLS + 500))
    with bench.servers(*options, ours=limit, floor=False) as servers:
        empty = {}
        for side, server in servers.items():
            empty[side] = server.resident_kib()
            taken.setdefault(("no cells: resident", "MiB"), {})[side] = [empty[side] / 1024]
            _open_all(bench, server)
            note(f"{_CELLS:,} cells open", side, server, empty[side])
        for side, server in servers.items():
            wait_hibernated(server, _IDLE_SECS + 60)
            note(f"{_CELLS:,} hibernated", side, server, empty[side])
    for (name, unit), samples in taken.items():
        yield Figure("memory", name, unit, samples)


def _open_all(bench: Bench, server: Process) -> None:
    # A cell may be made with its first record and opened by the second.
    work = [
        [Work("append", f"cell-{number}", 1, 2) for number in range(first, _CELLS, _CONNECTIONS)]
        for first in range(_CONNECTIONS)
    ]
    bench.load.run(server, work)
    found = open_cells(server)
    if found != _CELLS:
        raise RuntimeError(f"{found} cells are open instead of {_CELLS}; is the machine too busy?")


def wake(bench: Bench) -> Iterator[Figure]:
    """The first request to a hibernated cell."""
    rounds, stretches, stretch, idle = 4, 3, 100, 2
    names = [f"asleep-{number}" for number in range(stretches * stretch)]

    def some(number: int) -> list[str]:
        return names[number * stretch : (number + 1) * stretch]

    with bench.servers("--idle-secs", str(idle)) as servers, bench.bare() as bare:
        sides = bench.over(servers, lambda number: [Work("fetch", name) for name in some(number)])
        sides[SQLITE] = lambda number: bare.wake(some(number))
        for server in servers.values():
            bench.load.run(server, [[Work("put", name) for name in names]])
        for name in names:
            bare.put(name, 1, 1)
        latencies: dict[str, list[list[float]]] = {side: [] for side in sides}
        for _ in range(rounds):
            bare.close()
            for side, server in servers.items():
                if side != HTTP:
                    wait_hibernated(server, idle + 30)
            for side, taken in alternate(range(stretches), sides).items():
                latencies[side] += taken
    name = "first GET of a hibernated cell, p50"
    yield Figure("wake", name, "ms", each(latencies, p50))
