"""The scenarios over HTTP: appends to one run and to many, blobs, and reading journals back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.bare import Bare, p50
from bench.figures import HTTP, OURS, SQLITE, Figure, Target, alternate, each, merged
from bench.requests import Work, record
from bench.servers import Bench
from tests.support.processes import Process

Side = Callable[[int], list[float]]


def append(bench: Bench) -> Iterator[Figure]:
    """One run, 3,000 records, one after another."""
    rounds, stretches, stretch = 5, 6, 500
    with bench.warm_servers() as servers, bench.bare() as bare:
        sides = _appends(bench, servers, bare, stretches, stretch)
        taken = alternate(range(rounds * stretches), sides)
    figures = each(merged(taken, stretches), p50)
    yield Figure("append", "3,000 records to one run, p50", "ms", figures, Target(1.0))


def append_long(bench: Bench) -> Iterator[Figure]:
    """One run, 20,000 records: does an append stay as cheap as it was?"""
    stretches, stretch, last = 80, 250, 8
    with bench.warm_servers() as servers, bench.bare() as bare:
        sides = _appends(bench, servers, bare, stretches, stretch)
        nodes = {side: sides[side] for side in servers if side != HTTP}
        early = alternate(range(stretches - last), nodes)
        for number in range(stretches - last):
            sides[SQLITE](number)
        late = alternate(range(stretches - last, stretches), sides)
    whole = merged({side: early[side] + late[side] for side in nodes}, stretches)
    name = "last 2,000 of 20,000 records, p50"
    yield Figure("append-long", name, "ms", each(late, p50), Target(0.5))
    yield Figure("append-long", "all 20,000 records, p50", "ms", each(whole, p50))


def _appends(
    bench: Bench, servers: Mapping[str, Process], bare: Bare, stretches: int, stretch: int
) -> dict[str, Side]:
    """What appends one stretch of records; a run has `stretches` of them.

    The machine's speed drifts within seconds, so a stretch takes some tenths of one before
    another side has its turn.
    """

    def place(number: int) -> tuple[str, int, int]:
        run, earlier = divmod(number, stretches)
        return f"run-{run}", earlier * stretch + 1, stretch

    sides = bench.over(servers, lambda number: [Work("append", *place(number))])
    return sides | {SQLITE: lambda number: bare.append(*place(number))}


def runs(bench: Bench) -> Iterator[Figure]:
    """Many runs at once, each appended to over a connection of its own."""
    rounds, requests = 9, 3200
    for count in (16, 64):
        share = requests // count
        with bench.warm_servers() as servers, bench.bare() as bare:
            sides = {
                side: _at_once(bench, server, count, share) for side, server in servers.items()
            }
            sides[SQLITE] = _in_turn(bare, count, share)
            taken = alternate(range(rounds), sides)
        target = Target(0.85, at_least=True)
        yield Figure("runs", f"appends to {count} runs at once", "1/s", taken, target)


def _at_once(bench: Bench, server: Process, count: int, share: int) -> Callable[[int], float]:
    def measure(number: int) -> float:
        names = [f"{count}-{number}-{run}" for run in range(count)]
        before = [[Work("append", name, 1)] for name in names]
        work = [[Work("append", name, 2, share)] for name in names]
        return bench.load.run(server, work, before).throughput

    return measure


def _in_turn(bare: Bare, count: int, share: int) -> Callable[[int], float]:
    return lambda number: bare.append_in_turn([f"{number}-{run}" for run in range(count)], share)


def blob(bench: Bench) -> Iterator[Figure]:
    """One blob of 10 KB, new bytes each time."""
    rounds, stretch = 20, 250

    def place(number: int) -> tuple[str, int, int]:
        return "blob", number * stretch + 1, stretch

    with bench.warm_servers() as servers, bench.bare() as bare:
        sides = bench.over(servers, lambda number: [Work("put", *place(number))])
        sides[SQLITE] = lambda number: bare.put(*place(number))
        taken = alternate(range(rounds), sides)
    yield Figure("blob", "PUT of 10 KB on one key, p50", "ms", each(taken, p50), Target(1.25))


def read(bench: Bench) -> Iterator[Figure]:
    """Whole journals, as a machine reads them that takes over a run."""
    with bench.warm_servers() as servers, bench.bare() as bare:
        for count, rounds, reads in ((2000, 9, 10), (20000, 5, 3)):
            run = f"journal-{count}"
            bare.append(run, 1, count)
            for server in servers.values():
                bench.load.run(server, [[Work("append", run, 1, count)]])
            _check_size(bench, servers[OURS], run, count)
            for kind, words in (("read", "gzip accepted"), ("read-plain", "no gzip")):
                sides = _reads(bench, servers, bare, Work(kind, run, 1, reads))
                figures = each(alternate(range(rounds), sides), p50)
                yield Figure("read", f"GET of {count:,} records, {words}, p50", "ms", figures)


def _reads(bench: Bench, servers: Mapping[str, Process], bare: Bare, work: Work) -> dict[str, Side]:
    sides = bench.over(servers, lambda _: [work])
    return sides | {SQLITE: lambda _: [bare.read(work.run) for _ in range(work.times)]}


def _check_size(bench: Bench, server: Process, run: str, count: int) -> None:
    """Raise RuntimeError unless what is read back can be what was stored."""
    stored = sum(len(record(seq)) for seq in range(1, count + 1))
    received = bench.load.run(server, [[Work("read-plain", run)]]).received
    if received < stored:
        raise RuntimeError(f"{received} bytes came back where {stored} were stored")
