"""What a bucket is asked and sent: requests and bytes, counted by a proxy before it.

Counts hold on any machine. What a node does once, the probe at its start, claims and releases, is
counted apart from its syncs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from time import perf_counter

from bench.bucket import Bucket, Counted, bucket, wait_replicated
from bench.figures import OURS, REFERENCE, Figure, Limit
from bench.prose import Prose, ratio
from bench.requests import TOKEN
from bench.servers import Bench
from tests.support.client import Client
from tests.support.processes import Process

_NAME = "bucket-cost"
_RATE = 50
_CADENCE = 2
_OPTIONS = ("--sync-secs", str(_CADENCE))
_RECORDS = 1000
# Small changes lie in records, which are superseded when they are merged, after some two minutes at
# this pace, and deleted up to two minutes later: this takes in both.
_LONG_SECS = 270
_SEED = 7

_BIG_CELL = 100_000_000
# The reference takes bodies of up to 2 MB.
_BLOB = 1_000_000
# More than zstd looks back at this level.
_APART = 10 * _BLOB
_CHANGE = 1000


class _Run:
    """One run of a node, appended to at a steady pace."""

    def __init__(self, client: Client, prose: Prose, size: int) -> None:
        self._client = client
        self._prose = prose
        self._size = size
        self._seqs = count(1)
        self.data = 0

    def append(self, times: int, pause: float) -> None:
        """Append records, `pause` seconds from each to the next."""
        start = perf_counter()
        for number in range(times):
            time.sleep(max(0.0, start + number * pause - perf_counter()))
            record = self._prose.record(next(self._seqs), self._size)
            self.send("POST", "/runs/cost/records", record)

    def send(self, method: str, path: str, body: bytes) -> None:
        self.data += len(body)
        status = self._client.request(method, path, body).status
        if status != 200:
            raise RuntimeError(f"{method} {path} was answered {status}")


def cost(bench: Bench) -> Iterator[Figure]:
    """Records at a steady pace, small ones and large ones, and a large cell that changes little."""
    with bucket(bench) as place:
        yield from _pace(place, 600, requests=1.3)
        yield from _pace(place, 20_000, requests=2.6)
        yield from _large(place)


def _pace(place: Bucket, size: int, requests: float) -> Iterator[Figure]:
    """One run, records of `size` bytes."""
    name = f"{size:,} B at {_RATE}/s"
    once: dict[tuple[str, str], dict[str, list[float]]] = {}
    stretches: dict[str, list[tuple[str, Counted, int]]] = {}
    for side in place.sides:
        place.take()
        with place.node(side, f"pace-{size}", _OPTIONS) as server, _client(server) as client:
            run = _Run(client, Prose(_SEED), size)
            once.setdefault(("start", ""), {})[side] = [float(place.take().total)]
            run.append(1, 0)
            wait_replicated(server)
            once.setdefault(("claim and first sync", ""), {})[side] = [float(place.take().total)]
            stretches[side] = list(_stretches(place, server, run, more=side == OURS))
            place.take()
            if side == OURS:
                server.stop()
                once.setdefault(("stop", ""), {})[side] = [float(place.take().total)]
    yield from _compression(name, size)
    for index, (stretch, _, _) in enumerate(stretches[OURS]):
        taken = {side: found[index] for side, found in stretches.items() if index < len(found)}
        yield from _shares(f"{name}, {stretch}", taken, requests)
    for (what, unit), samples in once.items():
        yield Figure(_NAME, f"{name}, {what}: requests", unit, samples)


def _stretches(
    place: Bucket, server: Process, run: _Run, *, more: bool
) -> Iterator[tuple[str, Counted, int]]:
    """A stretch of load, all of it replicated at its end: what passed, for how much data."""
    before = run.data
    run.append(_RECORDS, 1 / _RATE)
    wait_replicated(server)
    first = place.take()
    yield f"{_RECORDS:,} records", first, run.data - before
    if more and not place.bench.short:
        run.append(_LONG_SECS * _RATE - _RECORDS, 1 / _RATE)
        wait_replicated(server)
        yield f"{_LONG_SECS} s, with collection", first + place.take(), run.data - before


def _shares(
    name: str, taken: dict[str, tuple[str, Counted, int]], requests: float
) -> Iterator[Figure]:
    totals = {side: [float(counted.total)] for side, (_, counted, _) in taken.items()}
    syncs = {side: [float(_syncs(side, counted))] for side, (_, counted, _) in taken.items()}
    each = {side: [totals[side][0] / syncs[side][0]] for side in taken}
    yield Figure(_NAME, f"{name}: requests a sync", "", each, Limit(requests))
    share = {side: [counted.sent / data] for side, (_, counted, data) in taken.items()}
    yield Figure(_NAME, f"{name}: bytes sent a byte of data", "", share, Limit(1.0))
    yield Figure(_NAME, f"{name}: requests", "", totals)
    for kind in sorted({kind for _, counted, _ in taken.values() for kind in counted.requests}):
        parts = {
            side: [float(counted.requests.get(kind, 0))] for side, (_, counted, _) in taken.items()
        }
        yield Figure(_NAME, f"{name}: {kind}", "", parts)
    sent = {side: [counted.sent / 1e6] for side, (_, counted, _) in taken.items()}
    yield Figure(_NAME, f"{name}: sent", "MB", sent)


def _syncs(side: str, counted: Counted) -> int:
    """The reference writes its record for other reasons too, and a snapshot each sync."""
    return (counted.states if side == REFERENCE else counted.records) or 1


def _compression(name: str, size: int) -> Iterator[Figure]:
    """The least that could be sent: a cadence's records, compressed together."""
    prose = Prose(_SEED)
    some = [prose.record(seq, size) for seq in range(_RATE * _CADENCE)]
    figure = {OURS: [ratio(some)]}
    yield Figure(_NAME, f"{name}: zstd makes a cadence of it smaller by", "x", figure)


def _large(place: Bucket) -> Iterator[Figure]:
    """A large cell, one small record a cadence."""
    seconds = {OURS: 60 if place.bench.short else 240, REFERENCE: 20}
    a_minute: dict[str, list[float]] = {}
    requests: dict[str, list[float]] = {}
    for side in place.sides:
        with place.node(side, "large", _OPTIONS) as server, _client(server) as client:
            prose = Prose(_SEED)
            run = _Run(client, prose, _CHANGE)
            text = prose.text(_APART).encode()
            for start in range(0, _BIG_CELL, _BLOB):
                body = text[start % _APART :][:_BLOB]
                run.send("PUT", f"/runs/cost/blobs/{start}", body)
            wait_replicated(server)
            # A snapshot may be due with the next sync.
            for _ in range(2):
                run.append(1, 0)
                wait_replicated(server)
            place.take()
            run.append(seconds[side] // _CADENCE, _CADENCE)
            wait_replicated(server)
            counted = place.take()
            a_minute[side] = [counted.sent / 1e3 * 60 / seconds[side]]
            requests[side] = [counted.total / _syncs(side, counted)]
    name = f"{_BIG_CELL / 1e6:.0f} MB changed by {_CHANGE:,} B a sync"
    yield Figure(_NAME, f"{name}: sent a minute", "kB", a_minute, Limit(200))
    yield Figure(_NAME, f"{name}: requests a sync", "", requests)


def _client(server: Process) -> Client:
    return Client(server.url, TOKEN)
