"""A bucket in memory, and clients of it whose network can be made to fail in every known way.

Nothing here reads a clock or draws by itself: the time of the bucket, the randomness and the way
to do something later are handed in, so that a simulation in virtual time repeats exactly.
"""

from __future__ import annotations

import asyncio
import hashlib
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path
from random import Random  # noqa: TID251
from typing import NamedTuple, TypeVar

from cellstore.objects import Got, Listed, Listing, Outcome, Put, StoreFault

T = TypeVar("T")

Later = Callable[[float, Callable[[], object]], object]


class Stored(NamedTuple):
    """An object: its bytes, when it was written in whole seconds, its tag."""

    data: bytes
    modified: float
    etag: str


class Mutation(NamedTuple):
    """Something that changed the bucket: the exact time, create, replace, put or delete, the key.

    `data` is what was written, None for a delete.
    """

    time: float
    op: str
    key: str
    data: bytes | None


class Bucket:
    """The state that all clients share; each operation happens at one instant.

    `now` tells the bucket's time in seconds since 1970. `later` does something after so many
    seconds whatever has become of the client that asked for it. `history` holds all changes, and
    each of `hooks` is called with a change when it has happened.
    """

    def __init__(self, now: Callable[[], float], later: Later) -> None:
        self.now = now
        self.later = later
        self.objects: dict[str, Stored] = {}
        self.history: list[Mutation] = []
        self.hooks: list[Callable[[Mutation], object]] = []
        self._keys: list[str] = []

    def create(self, key: str, data: bytes) -> Put:
        return self._write("create", key, data, matches=key not in self.objects)

    def replace(self, key: str, data: bytes, etag: str | None) -> Put:
        held = self.objects.get(key)
        return self._write("replace", key, data, matches=(held and held.etag) == etag)

    def put(self, key: str, data: bytes) -> None:
        self._write("put", key, data, matches=True)

    def _write(self, op: str, key: str, data: bytes, *, matches: bool) -> Put:
        date = self.date()
        if not matches:
            return Put(Outcome.EXISTS, date)
        if key not in self.objects:
            insort(self._keys, key)
        # As with S3, equal bytes have equal tags.
        etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        self.objects[key] = Stored(data, date, etag)
        self._note(Mutation(self.now(), op, key, data))
        return Put(Outcome.CREATED, date, "", etag)

    def get(self, key: str) -> Got | None:
        held = self.objects.get(key)
        return None if held is None else Got(held.data, self.date(), held.etag)

    def folders(self, prefix: str) -> list[str]:
        tails = (key.removeprefix(prefix).partition("/") for key in self._below(prefix))
        return sorted({name for name, slash, _ in tails if slash})

    def list(self, prefix: str, after: str) -> Listing:
        entries = []
        for key in self._below(prefix, after):
            held = self.objects[key]
            entries.append(Listed(key, held.modified, len(held.data)))
        return Listing(entries, self.date())

    def _below(self, prefix: str, after: str = "") -> Sequence[str]:
        start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        end = start
        while end < len(self._keys) and self._keys[end].startswith(prefix):
            end += 1
        return self._keys[start:end]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self.objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
                self._note(Mutation(self.now(), "delete", key, None))

    def date(self) -> float:
        """The bucket's time as it tells it: in whole seconds."""
        return float(floor(self.now()))

    def _note(self, mutation: Mutation) -> None:
        self.history.append(mutation)
        for hook in self.hooks:
            hook(mutation)


@dataclass
class Faults:
    """What goes wrong between one client and the bucket; may be changed at any time.

    Probabilities are for each call, ranges in seconds. `latency` is one way.
    """

    latency: tuple[float, float] = (0.0, 0.0)
    # How long a client waits for an answer that does not come.
    timeout: tuple[float, float] = (0.0, 0.0)
    # Nothing is done, and an error comes back.
    fail_before: float = 0.0
    # It is done, and an error comes back.
    lost_answer: float = 0.0
    # An error comes back, and a write is done after `late_by`.
    late: float = 0.0
    late_by: tuple[float, float] = (1.0, 180.0)
    # A write is done twice, shortly after each other, and the second one's answer comes back: what
    # an HTTP client does whose connection broke.
    resend: float = 0.0
    # A write is done at once, and again after `late_by`: what a network may do.
    duplicate: float = 0.0
    # Errors of reads alone.
    list_failure: float = 0.0
    get_failure: float = 0.0
    # Requests and answers under way are lost too.
    partitioned: bool = False
    # The store's answers do not say when they were given.
    no_date: bool = False


class BucketClient:
    """One node's way to the bucket. `calls` counts what was asked, by name.

    A client that is dropped in the middle of a write may have sent it: it then lands, or not.
    """

    def __init__(
        self,
        bucket: Bucket,
        faults: Faults | None = None,
        rng: Random | None = None,
    ) -> None:
        self.bucket = bucket
        self.faults = Faults() if faults is None else faults
        self.calls: Counter[str] = Counter()
        self._rng = Random(0) if rng is None else rng

    async def create(self, key: str, data: bytes) -> Put:
        return await self._put("create", key, lambda: self.bucket.create(key, data))

    async def replace(self, key: str, data: bytes, etag: str | None) -> Put:
        return await self._put("replace", key, lambda: self.bucket.replace(key, data, etag))

    async def _put(self, op: str, key: str, write: Callable[[], Put]) -> Put:
        try:
            put = await self._write(op, key, write)
        except StoreFault as fault:
            return Put(Outcome.UNKNOWN, None, str(fault))
        return put._replace(date=self._told(put.date))

    async def put(self, key: str, data: bytes | Path) -> None:
        content = data.read_bytes() if isinstance(data, Path) else data
        await self._write("put", key, lambda: self.bucket.put(key, content))

    async def delete(self, keys: Sequence[str]) -> None:
        asked = tuple(keys)
        if asked:
            await self._write("delete", asked[0], lambda: self.bucket.delete(asked))

    async def get(self, key: str) -> Got | None:
        got = await self._read("get", key, lambda: self.bucket.get(key), self.faults.get_failure)
        return got and got._replace(date=self._told(got.date))

    async def fetch(self, key: str, path: Path) -> bool:
        failure = self.faults.get_failure
        got = await self._read("fetch", key, lambda: self.bucket.get(key), failure)
        if got is None:
            return False
        with path.open("xb") as file:
            file.write(got.data)
        return True

    async def folders(self, prefix: str) -> list[str]:
        failure = self.faults.list_failure
        return await self._read("folders", prefix, lambda: self.bucket.folders(prefix), failure)

    async def list(self, prefix: str, after: str = "") -> Listing:
        listing = await self._read(
            "list", prefix, lambda: self.bucket.list(prefix, after), self.faults.list_failure
        )
        return listing._replace(date=self._told(listing.date))

    async def _read(self, op: str, key: str, read: Callable[[], T], failure: float) -> T:
        self.calls[op] += 1
        await self._travel()
        await self._arrive(op, key)
        if self._happens(failure):
            raise StoreFault(f"{op} {key}: 500 InternalError")
        result = read()
        await self._return(op, key)
        return result

    async def _write(self, op: str, key: str, write: Callable[[], T]) -> T:
        self.calls[op] += 1
        try:
            await self._travel()
        except asyncio.CancelledError:
            if not self.faults.partitioned and self._rng.random() < 0.5:
                self.bucket.later(self._within(self.faults.latency), write)
            raise
        await self._arrive(op, key)
        if self._happens(self.faults.late):
            self.bucket.later(self._within(self.faults.late_by), write)
            raise await self._silence(op, key)
        result = write()
        if self._happens(self.faults.duplicate):
            self.bucket.later(self._within(self.faults.late_by), write)
        if self._happens(self.faults.resend):
            await self._travel()
            result = write()
        await self._return(op, key)
        return result

    async def _travel(self) -> None:
        await asyncio.sleep(self._within(self.faults.latency))

    async def _arrive(self, op: str, key: str) -> None:
        if self.faults.partitioned:
            raise await self._silence(op, key)
        if self._happens(self.faults.fail_before):
            raise StoreFault(f"{op} {key}: 503 SlowDown")

    async def _return(self, op: str, key: str) -> None:
        if self._happens(self.faults.lost_answer):
            raise await self._silence(op, key)
        await self._travel()
        if self.faults.partitioned:
            raise await self._silence(op, key)

    async def _silence(self, op: str, key: str) -> StoreFault:
        await asyncio.sleep(self._within(self.faults.timeout))
        return StoreFault(f"{op} {key}: no answer in time")

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def _within(self, bounds: tuple[float, float]) -> float:
        return self._rng.uniform(*bounds)

    def _told(self, date: float | None) -> float | None:
        return None if self.faults.no_date else date
