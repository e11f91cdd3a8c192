"""Many runs on one node while the bucket is far away: do requests wait, do leases lapse?

Each run appends once a second. Syncing all of them at the cadence may be more than the bucket, or
the node, can do; then syncs come less often, and nothing else may suffer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from statistics import median, quantiles
from threading import Event, Thread
from typing import Any, NamedTuple

from bench.bucket import Bucket, Counted, bucket, cells
from bench.figures import HTTP, OURS, Figure, Limit
from bench.paced import Paced, Paces
from bench.servers import Bench, http_floor
from tests.support.processes import Process

_NAME = "bucket-load"
_DELAY_MS = 50
_LEASE = 15
_CADENCE = 2
_OPTIONS = ("--lease-secs", str(_LEASE), "--sync-secs", str(_CADENCE))
# A client gives up after this.
_CLIENT_SECS = 30


class _Taken(NamedTuple):
    paced: Paced
    counted: Counted
    lapsed: int
    unreplicated: int
    lag: float
    silent: int


def crowd(bench: Bench) -> Iterator[Figure]:
    """200 runs beside the reference, and 1,000 for ours alone."""
    seconds = 20 if bench.short else 60
    for count, sides in ((200, None), (1000, [OURS])):
        taken: dict[str, _Taken] = {}
        with bucket(bench, _DELAY_MS) as place:
            for side in sides or place.sides:
                with place.node(side, f"load-{count}", _OPTIONS) as server:
                    taken[side] = _measure(place, server, count, seconds)
        with http_floor(bench) as floor:
            load = Paces(floor, count, 5)
            load.hear()
            http = load.end()
        yield from _figures(f"{count:,} runs, 1/s each", count, seconds, taken, http)


def _measure(place: Bucket, server: Process, count: int, seconds: int) -> _Taken:
    place.take()
    watch = _Watch(server)
    watch.start()
    load = Paces(server, count, seconds)
    load.hear()
    counted = place.take()
    time.sleep(2 * _CADENCE)
    # A run whose node does not even tell is not known to be replicated.
    unreplicated, lag = count, float(seconds)
    with suppress(OSError):
        found = cells(server)
        unreplicated = count - sum(cell["replicated"] for cell in found)
        lag = max((cell.get("lag_secs", 0.0) for cell in found), default=0.0)
    watch.stop()
    paced = load.end()
    return _Taken(
        paced, counted, len(watch.lapsed), unreplicated, max(lag, watch.lag), watch.silent
    )


class _Watch(Thread):
    """Asks a node for its status once a second, and keeps which leases were seen to have lapsed."""

    def __init__(self, server: Process) -> None:
        super().__init__(daemon=True)
        self.lapsed: set[str] = set()
        self.silent = 0
        self.lag = 0.0
        self._server = server
        self._stopped = Event()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        while not self._stopped.wait(1.0):
            try:
                found = cells(self._server)
            except OSError:
                self.silent += 1
                continue
            now = datetime.now(UTC).isoformat()
            self.lapsed.update(cell["cell"] for cell in found if not _holds(cell, now))
            self.lag = max([self.lag, *(cell.get("lag_secs", 0.0) for cell in found)])


def _holds(cell: dict[str, Any], now: str) -> bool:
    """As the node says, or else by the end that its record tells everybody."""
    if "holds" in cell:
        return bool(cell["holds"])
    # Both are in UTC, and the first 19 characters go down to the second.
    return str(cell["lease_expires_at"])[:19] >= now[:19]


def _figures(
    name: str, count: int, seconds: int, taken: dict[str, _Taken], http: Paced
) -> Iterator[Figure]:
    def figure(
        what: str, unit: str, values: dict[str, float], limit: float | None = None
    ) -> Figure:
        samples = {side: [value] for side, value in values.items()}
        return Figure(
            _NAME, f"{name}: {what}", unit, samples, None if limit is None else Limit(limit)
        )

    paced = {side: each.paced for side, each in taken.items()} | {HTTP: http}
    later = {side: each.later for side, each in paced.items() if len(each.later) > 1}
    first = {side: each.first for side, each in paced.items()}
    p50 = {side: median(some) * 1e3 for side, some in later.items()}
    yield figure("append, p50", "ms", p50, 5.0 if count <= 200 else None)
    yield figure("append, p99", "ms", {side: _p99(some) for side, some in later.items()})
    yield figure("append, worst", "ms", {side: max(some) * 1e3 for side, some in later.items()})
    claims = {side: median(some) * 1e3 for side, some in first.items() if some}
    yield figure("first append, p50", "ms", claims)
    claims = {side: max(some) * 1e3 for side, some in first.items() if some}
    yield figure("first append, worst", "ms", claims)
    slow = {side: _slow(each) for side, each in paced.items()}
    yield figure(f"answered after {_CLIENT_SECS} s or never", "", slow, 0)
    yield figure("beats missed", "", {side: float(each.late) for side, each in paced.items()})
    errors = {side: float(len(each.errors)) for side, each in paced.items()}
    yield figure("errors", "", errors, 0)
    yield figure("leases lapsed", "", {s: float(t.lapsed) for s, t in taken.items()}, 0)
    left = {side: float(each.unreplicated) for side, each in taken.items()}
    yield figure("not replicated 2 cadences later", "", left, 0)
    yield figure("longest lag told", "s", {side: t.lag for side, t in taken.items() if t.lag})
    syncs = {
        side: count * seconds / each.counted.records
        for side, each in taken.items()
        if each.counted.records
    }
    yield figure("seconds from a run's record to its next", "s", syncs)
    a_second = {side: each.counted.total / seconds for side, each in taken.items()}
    yield figure("bucket requests", "1/s", a_second)
    yield figure("status not told in time", "", {s: float(t.silent) for s, t in taken.items()})


def _p99(latencies: Sequence[float]) -> float:
    return quantiles(latencies, n=100, method="inclusive")[98] * 1e3


def _slow(paced: Paced) -> float:
    known = sum(latency > _CLIENT_SECS for latency in (*paced.first, *paced.later))
    return float(known + len(paced.errors))
