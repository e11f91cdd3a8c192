"""The check of a bucket at the start: real servers pass it, and each known way to fail is named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from random import Random  # noqa: TID251

import pytest

from cellstore.errors import StartRefused
from cellstore.objects import Got, Listed, Listing, ObjectStore, Outcome, Put, StoreFault
from cellstore.probe import Probed, probe
from cellstore.s3 import S3Store
from cellstore.s3config import S3Config
from tests.fakes.bucket import BucketClient, Faults
from tests.support.processes import free_port
from tests.support.scripted import error, scripted
from tests.support.stores import NAMES, fake_bucket, opener

TTL = 15.0

_numbers = count()


def fresh() -> str:
    return f"scratch-{next(_numbers)}"


async def tried(
    store: ObjectStore, ttl: float = TTL, elapsed: Callable[[], float] | None = None
) -> Probed:
    clock = elapsed or time.monotonic  # noqa: TID251
    return await probe(store, clock, fresh, ttl, (0.01, 0.01, 0.01))


async def refusal(store: ObjectStore, ttl: float = TTL) -> str:
    with pytest.raises(StartRefused) as raised:
        await tried(store, ttl)
    return str(raised.value)


@pytest.mark.parametrize("name", NAMES)
async def test_good_stores_pass(name: str, tmp_path: Path) -> None:
    with opener(name, tmp_path / "bucket") as open_store:
        async with open_store("probed") as store:
            await store.put("cells/a", b"1")
            assert await tried(store) == Probed(conditional_replace=True, dated=True)
            # The scratch keys are gone, and nothing else.
            assert [entry.key for entry in (await store.list("")).entries] == ["cells/a"]


@pytest.mark.parametrize("seed", range(20))
async def test_a_weak_network_is_put_up_with(seed: int) -> None:
    """A race may need to be run again; what a good store does is never called its fault."""
    faults = Faults(fail_before=0.05, lost_answer=0.05, resend=0.05, latency=(0, 0.001))
    bucket = fake_bucket()
    store = BucketClient(bucket, faults, Random(seed))
    # Fifteen calls in a hundred fail; that four of them run is rare, but happens.
    (outcome,) = await asyncio.gather(tried(store), return_exceptions=True)
    assert isinstance(outcome, Probed) or "the bucket cannot be reached" in str(outcome)


async def test_a_store_without_dates() -> None:
    store = BucketClient(fake_bucket(), Faults(no_date=True))
    assert await tried(store) == Probed(conditional_replace=True, dated=False)


class Broken(BucketClient):
    """A fake whose calls a test replaces."""

    def __init__(self) -> None:
        super().__init__(fake_bucket())


async def test_a_store_that_ignores_the_header() -> None:
    class Ignoring(Broken):
        async def create(self, key: str, data: bytes) -> Put:
            await self.put(key, data)
            return Put(Outcome.CREATED, self.bucket.date(), "", '"e"')

    store = Ignoring()
    assert "ignores If-None-Match" in await refusal(store)
    assert store.bucket.objects == {}


async def test_a_store_that_lets_racing_creates_through() -> None:
    class Racy(Broken):
        """Looks, thinks, and writes: good enough while nobody races."""

        async def create(self, key: str, data: bytes) -> Put:
            if key in self.bucket.objects:
                return Put(Outcome.EXISTS, self.bucket.date())
            await asyncio.sleep(0)
            await self.put(key, data)
            return Put(Outcome.CREATED, self.bucket.date(), "", '"e"')

    store = Racy()
    assert "lets racing creates through: 16 of 16" in await refusal(store)
    assert store.bucket.objects == {}


async def test_a_store_that_tells_one_winner_and_keeps_another() -> None:
    class Swapping(Broken):
        async def create(self, key: str, data: bytes) -> Put:
            put = await super().create(key, data)
            if put.outcome is Outcome.EXISTS and b" of " in data:
                self.bucket.put(key, data)
            return put

    message = await refusal(Swapping())
    assert "lets racing creates through" in message
    assert "took the place" in message


async def test_a_store_that_gives_back_something_else() -> None:
    class Lying(Broken):
        async def get(self, key: str) -> Got | None:
            got = await super().get(key)
            return got and got._replace(data=got.data + b"!")

    assert "does not give back what was written" in await refusal(Lying())


async def test_a_store_whose_reads_lag() -> None:
    class Lagging(Broken):
        async def get(self, key: str) -> Got | None:
            return None

    class Unlisted(Broken):
        async def list(self, prefix: str, after: str = "") -> Listing:
            return Listing([], self.bucket.date())

    assert "does not show an object that was just written (GET)" in await refusal(Lagging())
    assert "does not list an object that was just written (LIST)" in await refusal(Unlisted())


class Skewed(Broken):
    """Lists by one clock and answers by another, `skew` seconds ahead."""

    skew = 0.0

    async def list(self, prefix: str, after: str = "") -> Listing:
        entries, date = await super().list(prefix, after)
        return Listing([Listed(e.key, e.modified - self.skew, e.size) for e in entries], date)


@pytest.mark.parametrize("skew", [-5.0, 5.0])
async def test_clocks_that_disagree(skew: float) -> None:
    store = Skewed()
    store.skew = skew
    message = await refusal(store)
    assert "the clocks of the bucket's servers disagree" in message
    assert store.bucket.objects == {}
    # What matters is how long the lease is, and how long the calls took.
    assert (await tried(store, ttl=60.0)).dated
    ticks = count(0.0, 3.0)
    assert (await tried(store, elapsed=lambda: next(ticks))).dated


@pytest.mark.parametrize(("skew", "good"), [(1.0, True), (-1.0, True), (3.0, False)])
async def test_whole_seconds_are_allowed_for(skew: float, good: bool) -> None:
    store = Skewed()
    store.skew = skew
    if good:
        assert (await tried(store, ttl=3.0)).dated
    else:
        assert "disagree" in await refusal(store, ttl=3.0)


async def test_whether_replacing_is_conditional() -> None:
    class Forgetful(Broken):
        async def replace(self, key: str, data: bytes, etag: str | None) -> Put:
            if etag is None:
                return await super().replace(key, data, None)
            await self.put(key, data)
            return Put(Outcome.CREATED, None, "", '"e"')

    class Unable(Broken):
        async def replace(self, key: str, data: bytes, etag: str | None) -> Put:
            if etag is None:
                return await super().replace(key, data, None)
            return Put(Outcome.UNKNOWN, None, f"replace {key}: 501 NotImplemented")

    class Careless(Broken):
        async def replace(self, key: str, data: bytes, etag: str | None) -> Put:
            if etag is not None and key not in self.bucket.objects:
                await self.put(key, data)
                return Put(Outcome.CREATED, None, "", '"e"')
            return await super().replace(key, data, etag)

    for store in (Forgetful(), Unable(), Careless()):
        assert await tried(store) == Probed(conditional_replace=False, dated=True)
        assert store.bucket.objects == {}


async def test_a_store_that_cannot_delete() -> None:
    class Keeping(Broken):
        async def delete(self, keys: Sequence[str]) -> None:
            raise StoreFault(f"delete {keys[0]}: AccessDenied (1 of 1 failed)")

    message = await refusal(Keeping())
    assert "access is denied" in message
    assert "(delete probe/" in message


async def test_a_store_that_cannot_be_reached() -> None:
    message = await refusal(BucketClient(fake_bucket(), Faults(partitioned=True)))
    assert message == "the bucket cannot be reached: list probe/: no answer in time"
    dead = f"http://127.0.0.1:{free_port()}"
    config = S3Config("journals", "", dead, "us-east-1", "key", "secret")
    async with S3Store.open(config) as store:
        message = await refusal(store)
    assert message.startswith("the bucket cannot be reached: list probe/: ")
    assert "Connection refused" in message


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (error(403, "RequestTimeTooSkewed"), "set the clock (list probe/: 403 RequestTimeTooSkew"),
        (error(403, "AccessDenied"), "access is denied"),
        (error(404, "NoSuchBucket"), "the bucket does not exist"),
        (error(403, "InvalidAccessKeyId"), "does not know this access key"),
        (error(403, "SignatureDoesNotMatch"), "the secret access key"),
    ],
)
async def test_a_store_that_refuses(sent: bytes, message: str) -> None:
    async with scripted(lambda _: sent) as server:
        config = S3Config("journals", "", server.endpoint, "us-east-1", "key", "secret")
        async with S3Store.open(config) as store:
            assert message in await refusal(store)
        # It is not asked again for what waiting cannot mend.
        assert len(server.requests) == 1
