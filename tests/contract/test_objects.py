"""One contract for all object stores: the fake, and S3 as two servers speak it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from cellstore.objects import ObjectStore, Outcome
from tests.support.stores import NAMES, Opener, opener

MIB = 1024 * 1024

# All that the id of a run may be made of.
ODD_KEYS = ["cells/A.b_c@d-e/x", "cells/-/x", "cells/...a/x", "cells/_@/x", "cells/a@b.c-0_9/x"]

_numbers = count()


@pytest.fixture(params=NAMES, scope="module")
def open_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opener]:
    with opener(request.param, tmp_path_factory.mktemp("objects") / "bucket") as opening:
        yield opening


@pytest.fixture
async def store(open_store: Opener) -> AsyncIterator[ObjectStore]:
    async with open_store(f"contract/{next(_numbers)}") as store:
        yield store


async def held(store: ObjectStore, key: str) -> bytes | None:
    got = await store.get(key)
    return None if got is None else got.data


async def keys(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    return [entry.key for entry in (await store.list(prefix, after)).entries]


async def fill(store: ObjectStore, names: list[str]) -> None:
    places = asyncio.Semaphore(16)

    async def one(name: str) -> None:
        async with places:
            await store.put(name, b"")

    await asyncio.gather(*map(one, names))


async def test_a_create_wins_once(store: ObjectStore) -> None:
    first = await store.create("a", b"first")
    assert first.outcome is Outcome.CREATED
    assert first.etag
    assert not first.fault
    second = await store.create("a", b"second")
    assert second.outcome is Outcome.EXISTS
    assert await held(store, "a") == b"first"


async def test_a_deleted_key_can_be_created_again(store: ObjectStore) -> None:
    await store.create("a", b"first")
    await store.delete(["a"])
    assert (await store.create("a", b"second")).outcome is Outcome.CREATED
    assert await held(store, "a") == b"second"


@pytest.mark.parametrize("size", [0, 1, 70_000, MIB + 1])
async def test_creates_of_every_size(store: ObjectStore, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    assert (await store.create("a", data)).outcome is Outcome.CREATED
    assert await held(store, "a") == data
    assert [entry.size for entry in (await store.list("a")).entries] == [size]


async def test_of_racing_creates_exactly_one_wins(store: ObjectStore) -> None:
    for number in range(40):
        key = f"race/{number}"
        bodies = [f"{number} {racer}".encode() for racer in range(16)]
        puts = await asyncio.gather(*(store.create(key, body) for body in bodies))
        assert Counter(put.outcome for put in puts) == {Outcome.CREATED: 1, Outcome.EXISTS: 15}
        winner = [put.outcome for put in puts].index(Outcome.CREATED)
        assert await held(store, key) == bodies[winner]


async def test_replacing_needs_the_tag_that_was_read(store: ObjectStore) -> None:
    await store.put("a", b"1")
    got = await store.get("a")
    assert got is not None
    second = await store.replace("a", b"2", got.etag)
    assert second.outcome is Outcome.CREATED
    assert second.etag not in {"", got.etag}
    assert (await store.replace("a", b"3", got.etag)).outcome is Outcome.EXISTS
    assert await held(store, "a") == b"2"
    assert (await store.replace("a", b"4", second.etag)).outcome is Outcome.CREATED
    assert await held(store, "a") == b"4"


async def test_replacing_nothing(store: ObjectStore) -> None:
    assert (await store.replace("a", b"1", None)).outcome is Outcome.CREATED
    assert (await store.replace("a", b"2", None)).outcome is Outcome.EXISTS
    got = await store.get("a")
    assert got is not None
    assert got.data == b"1"
    assert (await store.replace("b", b"2", got.etag)).outcome is Outcome.EXISTS
    assert await held(store, "b") is None


async def test_a_put_takes_the_place_of_another(store: ObjectStore) -> None:
    await store.put("a", b"1")
    await store.put("a", b"22")
    assert await held(store, "a") == b"22"
    assert await keys(store, "") == ["a"]


@pytest.mark.parametrize("size", [0, 5, 3 * MIB, 33 * MIB + 7], ids=str)
async def test_files_go_up_and_come_down(store: ObjectStore, tmp_path: Path, size: int) -> None:
    up, down = tmp_path / "up", tmp_path / "down"
    block = bytes(range(251)) * 4177
    with up.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: min(len(block), size - start)])
    await store.put("state/file", up)
    assert [entry.size for entry in (await store.list("state/")).entries] == [size]
    assert await store.fetch("state/file", down)
    assert down.read_bytes() == up.read_bytes()


async def test_what_is_not_there(store: ObjectStore, tmp_path: Path) -> None:
    assert await store.get("a") is None
    assert not await store.fetch("a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    listing = await store.list("a/")
    assert listing.entries == []
    assert listing.date is not None
    assert await store.folders("a/") == []


async def test_a_fetch_overwrites_nothing(store: ObjectStore, tmp_path: Path) -> None:
    await store.put("a", b"new")
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        await store.fetch("a", path)
    assert path.read_bytes() == b"old"


async def test_a_missing_file_is_no_fault_of_the_store(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await store.put("a", tmp_path / "missing")
    assert await store.get("a") is None


async def test_lists_are_in_order_and_start_after(store: ObjectStore) -> None:
    names = [f"m/{number:020d}.json" for number in (1, 2, 9, 10, 11, 100)]
    await fill(store, [*reversed(names), "m2/x", "l/x"])
    assert await keys(store, "m/") == names
    assert await keys(store, "m/", names[2]) == names[3:]
    assert await keys(store, "m/", "m/00000000000000000005") == names[2:]
    assert await keys(store, "m/", names[-1]) == []
    assert await keys(store, "") == ["l/x", *names, "m2/x"]
    assert await keys(store, "m") == [*names, "m2/x"]


async def test_more_than_a_page(store: ObjectStore) -> None:
    """A page is a thousand entries, in listings and in deletes."""
    folders = [f"{number:04d}" for number in range(1010)]
    names = [f"cells/{name}/x" for name in folders]
    await fill(store, names)
    assert await keys(store, "cells/") == names
    assert await keys(store, "cells/", names[3]) == names[4:]
    assert await store.folders("cells/") == folders
    assert await store.folders("") == ["cells"]
    await store.delete(names)
    assert await keys(store, "") == []


async def test_folders(store: ObjectStore) -> None:
    await fill(store, ["cells/b/meta/1", "cells/b/meta/2", "cells/a/x", "cells/top", "other/c/x"])
    assert await store.folders("cells/") == ["a", "b"]
    assert await store.folders("cells/b/") == ["meta"]
    assert await store.folders("") == ["cells", "other"]


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_odd_characters(store: ObjectStore, key: str, tmp_path: Path) -> None:
    assert (await store.create(key, b"1")).outcome is Outcome.CREATED
    assert (await store.create(key, b"1")).outcome is Outcome.EXISTS
    assert await held(store, key) == b"1"
    assert await store.fetch(key, tmp_path / "file")
    assert await keys(store, key[:-1]) == [key]
    assert await keys(store, "cells/", "cells/") == [key]
    assert await keys(store, "", key) == []
    assert await store.folders("cells/") == [key.split("/")[1]]
    await store.delete([key])
    assert await store.get(key) is None


async def test_deleting(store: ObjectStore) -> None:
    await fill(store, ["a", "b", "c"])
    await store.delete([])
    await store.delete(["a", "not there", "c"])
    await store.delete(["a"])
    assert await keys(store, "") == ["b"]


async def test_times(store: ObjectStore) -> None:
    before = time.time()  # noqa: TID251
    put = await store.create("a", b"1")
    got = await store.get("a")
    listing = await store.list("a")
    refused = await store.create("a", b"1")
    after = time.time()  # noqa: TID251
    assert got is not None
    times = [put.date, got.date, listing.date, refused.date, listing.entries[0].modified]
    for told in times:
        # Servers tell whole seconds, and some by a clock that they read now and then.
        assert told is not None
        assert told == int(told)
        assert before - 3 <= told <= after + 1
