"""`--ack bucket`: what an answer costs that waits until the bucket has it, in round trips to it.

A round trip is a small conditional PUT over a connection that is already there, measured through
the same proxy just before and just after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from statistics import median, quantiles
from time import perf_counter

from bench.bucket import Bucket, bucket
from bench.figures import OURS, Figure, Limit
from bench.requests import Work
from bench.servers import Bench
from cellstore.objects import Outcome
from cellstore.s3 import S3Store
from cellstore.s3config import from_environment

_NAME = "bucket-ack"
_DELAY_MS = 50
_TRIPS = 30
_OPTIONS = ("--ack", "bucket")


def acked(bench: Bench) -> Iterator[Figure]:
    """One writer of a run, and 64 writers of one run at once. The reference has no such setting."""
    rounds = 1 if bench.short else 3
    writers = ((1, 40), (64, 20))
    shares: dict[int, list[list[float]]] = {count: [] for count, _ in writers}
    trips: list[float] = []
    requests: dict[int, list[float]] = {count: [] for count, _ in writers}
    with bucket(bench, _DELAY_MS) as place, place.node(OURS, "ack", _OPTIONS) as server:
        trips.append(_trip(place, "0"))
        for number in range(rounds):
            for count, times in writers:
                run = f"{count}-writers-{number}"
                before = [[Work("append", run, 1, 1)], *[[] for _ in range(count - 1)]]
                work = [[Work("append", run, 2 + n * times, times)] for n in range(count)]
                place.take()
                measured = bench.load.run(server, work, before)
                counted = place.take()
                trips.append(_trip(place, f"{count}-{number}"))
                trip = (trips[-2] + trips[-1]) / 2
                shares[count].append([latency / trip for latency in measured.latencies])
                requests[count].append(len(measured.latencies) / counted.records)
    yield Figure(_NAME, "round trip of a bucket", "ms", {OURS: [trip * 1e3 for trip in trips]})
    for count, _ in writers:
        name = f"{count} writer{'s' if count > 1 else ''} of one run"
        # A write that comes while a record is under way waits for that one and for the next.
        bound = 1.3 if count == 1 else 2.5
        middle = {OURS: [median(some) for some in shares[count]]}
        yield Figure(_NAME, f"{name}, p50", "trips", middle, Limit(bound))
        p99 = {OURS: [quantiles(some, n=100, method="inclusive")[98] for some in shares[count]]}
        yield Figure(_NAME, f"{name}, p99", "trips", p99)
        worst = {OURS: [max(some) for some in shares[count]]}
        yield Figure(_NAME, f"{name}, worst", "trips", worst)
        yield Figure(_NAME, f"{name}: appends a record", "", {OURS: requests[count]})


def _trip(place: Bucket, name: str) -> float:
    """The median time of a small conditional PUT, in seconds."""
    config = from_environment(place.url("trips"), place.environment)

    async def measure() -> float:
        taken = []
        async with S3Store.open(config) as store:
            for number in range(_TRIPS):
                started = perf_counter()
                put = await store.create(f"{name}/{number}", b"{}" * 500)
                taken.append(perf_counter() - started)
                if put.outcome is not Outcome.CREATED:
                    raise RuntimeError(f"the bucket does not work: {put.fault}")
        return median(taken)

    return asyncio.run(measure())
