"""The fake bucket fails as it is told to, and the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random  # noqa: TID251

import pytest

from cellstore.objects import Outcome, StoreFault
from tests.fakes.bucket import Bucket, BucketClient, Faults, Mutation


class World:
    """A bucket whose time stands still, and what is to be done later in it."""

    def __init__(self) -> None:
        self.now = 1000.7
        self.waiting: list[tuple[float, Callable[[], object]]] = []
        self.bucket = Bucket(lambda: self.now, lambda *what: self.waiting.append(what))

    def client(self, faults: Faults | None = None, seed: int = 1) -> BucketClient:
        return BucketClient(self.bucket, faults, Random(seed))

    def land(self) -> None:
        for delay, what in self.waiting:
            self.now += delay
            what()
        self.waiting.clear()


@pytest.fixture
def world() -> World:
    return World()


async def test_history_and_hooks(world: World) -> None:
    seen: list[Mutation] = []
    world.bucket.hooks.append(seen.append)
    client = world.client()
    put = await client.create("a", b"1")
    assert put.date == 1000.0
    await client.create("a", b"2")
    await client.replace("a", b"3", put.etag)
    await client.put("b", b"4")
    await client.delete(["a", "b", "c"])
    assert [(m.op, m.key, m.data) for m in seen] == [
        ("create", "a", b"1"),
        ("replace", "a", b"3"),
        ("put", "b", b"4"),
        ("delete", "a", None),
        ("delete", "b", None),
    ]
    assert seen == world.bucket.history
    assert {m.time for m in seen} == {1000.7}
    assert client.calls == {"create": 2, "replace": 1, "put": 1, "delete": 1}


async def test_a_call_that_fails_does_nothing(world: World) -> None:
    client = world.client(Faults(fail_before=1))
    put = await client.create("a", b"1")
    assert (put.outcome, put.fault) == (Outcome.UNKNOWN, "create a: 503 SlowDown")
    with pytest.raises(StoreFault, match="put a: 503"):
        await client.put("a", b"1")
    with pytest.raises(StoreFault, match="get a: 503"):
        await client.get("a")
    assert world.bucket.history == []


async def test_an_answer_is_lost(world: World) -> None:
    client = world.client(Faults(lost_answer=1))
    assert (await client.create("a", b"1")).outcome is Outcome.UNKNOWN
    assert world.bucket.objects["a"].data == b"1"


async def test_a_write_lands_late_whatever_became_of_its_node(world: World) -> None:
    client = world.client(Faults(late=1, late_by=(60, 60)))
    assert (await client.create("a", b"1")).outcome is Outcome.UNKNOWN
    del client
    assert world.bucket.objects == {}
    world.land()
    assert world.bucket.objects["a"].modified == 1060.0


async def test_a_create_sent_twice_is_told_of_itself(world: World) -> None:
    client = world.client(Faults(resend=1))
    assert (await client.create("a", b"1")).outcome is Outcome.EXISTS
    assert world.bucket.objects["a"].data == b"1"


async def test_a_duplicate_creates_again_what_was_deleted(world: World) -> None:
    client = world.client(Faults(duplicate=1))
    assert (await client.create("a", b"1")).outcome is Outcome.CREATED
    await world.client().delete(["a"])
    world.land()
    assert [m.op for m in world.bucket.history] == ["create", "delete", "create"]


async def test_failures_of_reads_alone(world: World) -> None:
    client = world.client(Faults(list_failure=1, get_failure=1))
    assert (await client.create("a", b"1")).outcome is Outcome.CREATED
    for call in (client.get("a"), client.list(""), client.folders("")):
        with pytest.raises(StoreFault, match="500 InternalError"):
            await call


async def test_a_partition_also_keeps_the_answer(world: World) -> None:
    faults = Faults(partitioned=True)
    client = world.client(faults)
    assert (await client.create("a", b"1")).outcome is Outcome.UNKNOWN
    assert world.bucket.history == []
    faults.partitioned = False
    world.bucket.hooks.append(lambda _: setattr(faults, "partitioned", True))
    assert (await client.create("a", b"1")).outcome is Outcome.UNKNOWN
    assert len(world.bucket.history) == 1


async def test_a_store_without_dates(world: World) -> None:
    client = world.client(Faults(no_date=True))
    assert (await client.create("a", b"1")).date is None
    got = await client.get("a")
    assert got is not None
    assert got.date is None
    listing = await client.list("")
    assert listing.date is None
    assert listing.entries[0].modified == 1000.0


async def test_a_write_of_a_node_that_crashes_may_be_under_way(world: World) -> None:
    landed = 0
    for seed in range(40):
        client = world.client(Faults(latency=(5, 5)), seed)
        task = asyncio.create_task(client.create(f"{seed}", b"1"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        landed += len(world.waiting)
        world.land()
    assert 10 < landed < 30
    assert len(world.bucket.objects) == landed


async def _scene(seed: int) -> list[object]:
    world = World()
    faults = Faults(fail_before=0.2, lost_answer=0.2, late=0.2, resend=0.2, duplicate=0.2)
    client = world.client(faults, seed)
    told: list[object] = []
    for number in range(50):
        told.append(await client.create(f"{number % 20}", f"{number}".encode()))
        world.now += 1
    world.land()
    return [*told, *world.bucket.history]


async def test_the_same_seed_gives_the_same_story() -> None:
    assert await _scene(1) == await _scene(1)
    assert await _scene(1) != await _scene(2)
