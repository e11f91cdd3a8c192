"""Whether a bucket can be trusted with ownership, found out at the start by trying.

Everything rests on one promise: of all the creates of one key exactly one wins. Some servers ignore
the header that asks for it, some keep the promise only while nobody races. So creates race here, on
scratch keys that are removed again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from cellstore.errors import StartRefused
from cellstore.objects import Listing, ObjectStore, Outcome, Put, StoreFault

T = TypeVar("T")

_ROUNDS = 4
_RACERS = 16
# Seconds between attempts at what failed, and those after which nothing is tried again.
_WAITS = (0.5, 1.0, 2.0)
_PATIENCE = 45.0
_FOLDER = "probe/"

# What S3 calls a fault that waiting does not mend, and what to do about it.
_REMEDIES = {
    "RequestTimeTooSkewed": "this machine's clock and the store's are too far apart; set the clock",
    "NoSuchBucket": "the bucket does not exist; make it, or correct its name",
    "AccessDenied": "access is denied; these credentials need to read, list, write and delete",
    "AllAccessDisabled": "access is denied; the bucket is disabled",
    "InvalidAccessKeyId": "the store does not know this access key",
    "SignatureDoesNotMatch": "the secret access key, or the region, is not the right one",
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
    "NoCredentialsError": "no credentials were found; set them in the environment",
    "AuthorizationHeaderMalformed": "the region is not the bucket's",
    "PermanentRedirect": "the bucket is in another region",
}


class Probed(NamedTuple):
    """What a usable bucket can do beyond what is needed.

    `conditional_replace`: a replace with a stale tag is refused. `dated`: answers say when they
    were given.
    """

    conditional_replace: bool
    dated: bool


async def probe(
    store: ObjectStore,
    elapsed: Callable[[], float],
    fresh: Callable[[], str],
    ttl: float,
    waits: Sequence[float] = _WAITS,
) -> Probed:
    """Try a bucket out. Raises StartRefused saying what is wrong with it.

    `elapsed` counts seconds from any point, `fresh` makes a name that nobody has used, `ttl` is the
    lease in seconds, `waits` the seconds before each further attempt at what failed. Makes some
    ninety calls when all is well.
    """
    return await _Probe(store, elapsed, fresh, ttl, waits).run()


class _Probe:
    def __init__(
        self,
        store: ObjectStore,
        elapsed: Callable[[], float],
        fresh: Callable[[], str],
        ttl: float,
        waits: Sequence[float],
    ) -> None:
        self._store = store
        self._elapsed = elapsed
        self._fresh = fresh
        self._tolerance = ttl / 8 + 1.0
        self._waits = tuple(waits)
        self._began = elapsed()
        self._keys: list[str] = []
        self._dated = True

    async def run(self) -> Probed:
        await self._reach(lambda: self._store.list(_FOLDER))
        try:
            await self._one_after_the_other()
            for _ in range(_ROUNDS):
                await self._race()
            replaces = await self._replaces()
        except BaseException:
            with contextlib.suppress(StoreFault):
                await self._store.delete(self._keys)
            raise
        await self._reach(lambda: self._store.delete(self._keys))
        return Probed(replaces, self._dated)

    async def _one_after_the_other(self) -> None:
        key, _ = await self._first(lambda key: self._store.create(key, b"first"))
        await self._refused(lambda: self._store.create(key, b"second"))
        await self._reads(key, b"first")

    async def _race(self) -> None:
        """One round: sixteen creates at once, of which one must win and be there for all."""
        for wait in (*self._waits, None):
            key, before = self._key(), self._elapsed()
            bodies = [f"{racer} of {key}".encode() for racer in range(_RACERS)]
            puts = await asyncio.gather(*(self._store.create(key, body) for body in bodies))
            winners = [n for n, put in enumerate(puts) if put.outcome is Outcome.CREATED]
            if len(winners) > 1:
                raise StartRefused(
                    f"the bucket lets racing creates through: {len(winners)} of {_RACERS} creates "
                    "of one key at once (If-None-Match: *) each said that it had won, so two nodes "
                    "could own one run"
                )
            if winners:
                await self._reads(key, bodies[winners[0]], bodies)
                listing = await self._listed(key)
                self._check_times(listing, puts[winners[0]].date, self._elapsed() - before)
                return
            # Nobody won: an answer was lost, or the client sent twice and was told of itself.
            await self._pause(wait, next((put.fault for put in puts if put.fault), ""))

    async def _reads(self, key: str, body: bytes, others: list[bytes] | None = None) -> None:
        got = await self._reach(lambda: self._store.get(key))
        if got is None:
            raise StartRefused("the bucket does not show an object that was just written (GET)")
        if got.data != body and got.data in (others or [b"second"]):
            raise StartRefused(
                "the bucket lets racing creates through: a create (If-None-Match: *) that had not "
                "won took the place of the one that had"
            )
        if got.data != body:
            raise StartRefused("the bucket does not give back what was written (GET)")

    async def _listed(self, key: str) -> Listing:
        listing = await self._reach(lambda: self._store.list(key))
        if [entry.key for entry in listing.entries] != [key]:
            raise StartRefused("the bucket does not list an object that was just written (LIST)")
        return listing

    def _check_times(self, listing: Listing, created: float | None, seconds: float) -> None:
        modified = listing.entries[0].modified
        for date in (listing.date, created):
            if date is None:
                self._dated = False
                continue
            apart = abs(date - modified)
            allowed = self._tolerance + seconds
            if apart > allowed:
                raise StartRefused(
                    f"the clocks of the bucket's servers disagree: Date and LastModified of an "
                    f"object just written are {apart:.0f} s apart, of {allowed:.1f} s allowed for "
                    "this lease (--lease-secs)"
                )

    async def _replaces(self) -> bool:
        """Whether a replacement is refused unless the tag is the newest one."""
        key, _ = await self._first(lambda key: self._store.replace(key, b"first", None))
        await self._refused(lambda: self._store.replace(key, b"second", None))
        first = await self._reach(lambda: self._store.get(key))
        if first is None or first.data != b"first":
            return False
        tag = first.etag
        if await self._outcome(lambda: self._store.replace(key, b"other", tag)) is not (
            Outcome.CREATED
        ):
            return False
        other = await self._reach(lambda: self._store.get(key))
        if other is None or other.data != b"other" or other.etag == tag:
            return False
        stale = await self._outcome(lambda: self._store.replace(key, b"stale", tag))
        gone = await self._outcome(lambda: self._store.replace(self._key(), b"stale", tag))
        last = await self._reach(lambda: self._store.get(key))
        refused = stale is Outcome.EXISTS and gone is Outcome.EXISTS
        return refused and last is not None and last.data == b"other"

    async def _first(self, put: Callable[[str], Awaitable[Put]]) -> tuple[str, Put]:
        """Create a key that nobody has used; the key that was created in the end."""
        for wait in (*self._waits, None):
            key = self._key()
            answer = await put(key)
            if answer.outcome is Outcome.CREATED:
                return key, answer
            await self._pause(wait, answer.fault)
        raise AssertionError("the last pause raises")

    async def _refused(self, put: Callable[[], Awaitable[Put]]) -> None:
        """A create of a key that is there."""
        for wait in (*self._waits, None):
            answer = await put()
            if answer.outcome is Outcome.EXISTS:
                return
            if answer.outcome is Outcome.CREATED:
                raise StartRefused(
                    "the bucket ignores If-None-Match: it created an object that was there; runs "
                    "would be owned by two nodes at once"
                )
            await self._pause(wait, answer.fault)

    async def _outcome(self, put: Callable[[], Awaitable[Put]]) -> Outcome:
        """How a put ends, tried again while that is unknown."""
        answer = await put()
        for wait in self._waits:
            if answer.outcome is not Outcome.UNKNOWN:
                break
            await asyncio.sleep(wait)
            answer = await put()
        return answer.outcome

    async def _reach(self, call: Callable[[], Awaitable[T]]) -> T:
        for wait in (*self._waits, None):
            try:
                return await call()
            except StoreFault as fault:
                await self._pause(wait, str(fault))
        raise AssertionError("the last pause raises")

    async def _pause(self, seconds: float | None, fault: str) -> None:
        """Wait before the next attempt, unless this was the last or another cannot help."""
        for code, remedy in _REMEDIES.items():
            if code in fault:
                raise StartRefused(f"the bucket cannot be used: {remedy} ({fault})")
        if seconds is not None and self._elapsed() - self._began < _PATIENCE:
            await asyncio.sleep(seconds)
        elif fault:
            raise StartRefused(f"the bucket cannot be reached: {fault}")
        else:
            raise StartRefused("the bucket refuses to create objects that are not there (PUT)")

    def _key(self) -> str:
        key = _FOLDER + self._fresh()
        self._keys.append(key)
        return key
