"""Nodes of a fleet on a bucket in memory: what is not about ownership, which is simulated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cellstore.alone import Alone
from cellstore.clock import SystemClock, fresh_id
from cellstore.copies import Copies
from cellstore.database import InlineDatabase
from cellstore.directory import DataDirectory
from cellstore.errors import OwnedElsewhere, StartRefused, Unavailable
from cellstore.fleet import Fleet
from cellstore.index import RunIndex
from cellstore.node import Node
from cellstore.operations import Append, Oversize, PutBlob, ReadBlob, ReadRecords, Replace
from cellstore.ownership import Identity
from cellstore.prefix import join
from cellstore.records import Record
from cellstore.registry import BucketRegistry, LocalRegistry, move_entries
from tests.fakes import inline
from tests.fakes.bucket import Bucket, BucketClient, Faults
from tests.support.stores import fake_bucket

LIMIT = 2**30


class Member:
    """A node of a fleet and what it stands on."""

    def __init__(self, root: Path, bucket: Bucket, max_open_cells: int = 100) -> None:
        self.directory = DataDirectory(root)
        self.directory.acquire()
        self.copies = Copies(self.directory, InlineDatabase.open, inline)
        self.copies.scan()
        self.runs = RunIndex()
        self.client = BucketClient(bucket)
        self.fleet = Fleet(
            self.copies,
            self.client,
            SystemClock(),
            fresh_id,
            Identity(root.name, f"http://{root.name}", root.name, "boot", 3.0),
            self.runs,
            sync_secs=0.05,
            ack_bucket=False,
            max_lag_secs=3.0,
            alarm=pytest.fail,
        )
        self.node = Node(
            self.fleet.claims, SystemClock(), idle_secs=300, max_open_cells=max_open_cells
        )
        self.fleet.attach(self.node)

    async def stop(self) -> None:
        self.fleet.claims.draining = True
        await self.node.close()
        self.directory.release()


@contextlib.asynccontextmanager
async def member(root: Path, bucket: Bucket, max_open_cells: int = 100) -> AsyncIterator[Member]:
    """A running node, stopped in order at the end."""
    one = Member(root, bucket, max_open_cells)
    await one.fleet.start()
    going = asyncio.create_task(one.fleet.run())
    try:
        yield one
    finally:
        going.cancel()
        await asyncio.wait([going])
        await one.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def entries(bucket: Bucket, prefix: str = "") -> list[str]:
    return [entry.key for entry in bucket.list(prefix, "").entries]


async def alone(root: Path, work: Callable[[Node], Any]) -> None:
    """Do something on a node without a bucket, and stop it."""
    directory = DataDirectory(root)
    directory.acquire()
    copies = Copies(directory, InlineDatabase.open, inline)
    copies.scan()
    node = Node(Alone(copies, lambda _: None), SystemClock(), idle_secs=300, max_open_cells=100)
    await work(node)
    await node.close()
    directory.release()


async def test_what_was_written_without_a_bucket_is_published(tmp_path: Path) -> None:
    async def write(node: Node) -> None:
        for run in ("a", "b"):
            await node.perform(run, Append(Record(1, b'{"seq":1}')))
        await node.perform("b", PutBlob("large", bytes(range(256)) * 1000))

    await alone(tmp_path / "one", write)
    bucket = fake_bucket()
    async with member(tmp_path / "one", bucket):
        await until(lambda: bucket.folders("cells/") == ["a", "b"])
    async with member(tmp_path / "two", bucket) as two:
        assert two.runs.all() == ["a", "b"]
        text = b"".join(await two.node.perform("a", ReadRecords(LIMIT)))
        assert text == b'[{"seq":1}]'
        large = await two.node.perform("b", ReadBlob("large", LIMIT))
        assert large.data == bytes(range(256)) * 1000


async def test_a_run_of_that_name_in_the_bucket_makes_the_local_one_an_orphan(
    tmp_path: Path,
) -> None:
    async def write(node: Node) -> None:
        await node.perform("a", Append(Record(1, b'{"seq":1,"of":"one"}')))

    await alone(tmp_path / "one", write)
    bucket = fake_bucket()
    async with member(tmp_path / "two", bucket) as two:
        await two.node.perform("a", Append(Record(1, b'{"seq":1,"of":"two"}')))
        async with member(tmp_path / "one", bucket) as one:
            await until(one.directory.orphans)
            assert [path.name for path in one.directory.orphans()] == ["a.1"]
            with pytest.raises(OwnedElsewhere) as refused:
                await one.node.perform("a", ReadRecords(LIMIT))
            assert (refused.value.owner, refused.value.owner_url) == ("two", "http://two")


async def test_copies_that_are_in_the_bucket_are_discarded_for_room(tmp_path: Path) -> None:
    bucket = fake_bucket()
    async with member(tmp_path / "one", bucket) as one:
        for number in range(4):
            await one.node.perform(f"r{number}", PutBlob("k", bytes(100_000)))
        # An open cell stays, whatever the limit.
        await one.fleet.trim(0)
        assert len(one.copies.terms) == 4
    async with member(tmp_path / "one", bucket) as one:
        await one.fleet.trim(250_000)
        assert len(one.copies.terms) == 2
        await one.fleet.trim(0)
        assert one.copies.terms == {}
        assert not list(tmp_path.glob("one/cells/*/*"))
        blob = await one.node.perform("r0", ReadBlob("k", LIMIT))
        assert blob.data == bytes(100_000)


async def test_a_crowded_node_goes_on_after_each_new_run(tmp_path: Path) -> None:
    async with member(tmp_path / "one", fake_bucket(), max_open_cells=1) as one:
        write = Append(Record(1, b"{}"))
        async with asyncio.timeout(10):
            await asyncio.gather(*(one.node.perform(f"r{n}", write) for n in range(5)))


async def test_a_run_that_was_just_created_is_listed(tmp_path: Path) -> None:
    bucket = fake_bucket()
    async with member(tmp_path / "one", bucket) as one:
        await one.node.perform("new", Append(Record(1, b"{}")))
        assert one.runs.all() == ["new"]
        twice = Replace([Record(1, b"{}"), Record(1, b"{}")])
        with pytest.raises(sqlite3.IntegrityError):
            await one.node.perform("never", twice)
        assert await one.node.perform("never", ReadRecords(LIMIT)) is None
        assert one.runs.all() == ["new"]


async def test_a_prefix_is_joined_once_and_then_known(tmp_path: Path) -> None:
    bucket = fake_bucket()
    first = DataDirectory(tmp_path / "one")
    first.acquire()
    assert await join(BucketClient(bucket), first, "id-1", None) == "id-1"
    assert await join(BucketClient(bucket), first, "id-2", None) == "id-1"
    second = DataDirectory(tmp_path / "two")
    second.acquire()
    assert await join(BucketClient(bucket), second, "id-3", None) == "id-1"
    other = fake_bucket()
    with pytest.raises(StartRefused, match=r"whose cellstore\.json is gone"):
        await join(BucketClient(other), first, "id-4", None)
    other.put("cellstore.json", json.dumps({"format": 1, "id": "else"}).encode())
    with pytest.raises(StartRefused, match="belongs to another prefix"):
        await join(BucketClient(other), first, "id-4", None)
    for bad, message in ((b"{}", "is not what"), (b'{"format":2,"id":"x"}', "has format 2")):
        other.put("cellstore.json", bad)
        with pytest.raises(StartRefused, match=message):
            await join(BucketClient(other), second, "id-4", None)
    first.release()
    second.release()


async def test_cells_without_an_identity_are_another_servers(tmp_path: Path) -> None:
    bucket = fake_bucket()
    bucket.put("cells/a/meta/00000000000000000001.json", b"{}")
    directory = DataDirectory(tmp_path / "one")
    directory.acquire()
    with pytest.raises(StartRefused, match="--adopt"):
        await join(BucketClient(bucket), directory, "id", None)
    assert directory.prefix() is None
    directory.release()


@pytest.mark.parametrize("conditional", [True, False])
async def test_registry_entries_are_the_fleets(tmp_path: Path, conditional: bool) -> None:
    bucket = fake_bucket()
    one = BucketRegistry(BucketClient(bucket), conditional=conditional)
    two = BucketRegistry(BucketClient(bucket), conditional=conditional)
    assert await two.get("a", LIMIT) is None
    assert await two.entries(LIMIT) == [b"[", b"", b"]"]
    await one.put("b", b'{"v":1}')
    await two.put("a", b"2")
    await two.put("b", b'{"v":3}')
    await two.put("b", b'{"v":3}')
    assert b"".join(await one.entries(LIMIT)) == b'[2,{"v":3}]'  # type: ignore[arg-type]
    entry = await one.get("b", LIMIT)
    assert not isinstance(entry, Oversize | None)
    assert entry.data == b'{"v":3}'
    assert isinstance(await one.entries(3), Oversize)
    assert isinstance(await one.get("b", 3), Oversize)
    # One bad entry, put there by somebody else, hides no other.
    bucket.put("registry/a.json", b"{")
    assert b"".join(await one.entries(LIMIT)) == b'[{"v":3}]'  # type: ignore[arg-type]


async def test_writers_of_one_entry_all_get_through(tmp_path: Path) -> None:
    bucket = fake_bucket()
    writers = [BucketRegistry(BucketClient(bucket), conditional=True) for _ in range(8)]
    await asyncio.gather(*(one.put("a", b"%d" % n) for n, one in enumerate(writers)))
    entry = await writers[0].get("a", LIMIT)
    assert not isinstance(entry, Oversize | None)
    assert entry.data in [b"%d" % n for n in range(8)]


async def test_a_registry_whose_bucket_is_down_answers_nothing_old(tmp_path: Path) -> None:
    bucket = fake_bucket()
    client = BucketClient(bucket, Faults())
    registry = BucketRegistry(client, conditional=True)
    await registry.put("a", b"1")
    client.faults.partitioned = True
    for ask in (registry.entries(LIMIT), registry.get("a", LIMIT), registry.put("a", b"2")):
        with pytest.raises(Unavailable):
            await ask
    client.faults.partitioned = False
    assert b"".join(await registry.entries(LIMIT)) == b"[1]"  # type: ignore[arg-type]


async def test_local_entries_move_to_the_bucket(tmp_path: Path) -> None:
    async def write(node: Node) -> None:
        registry = LocalRegistry(node)
        await registry.put("a", b"1")
        await registry.put("b", b"2")

    await alone(tmp_path / "one", write)
    bucket = fake_bucket()
    registry = BucketRegistry(BucketClient(bucket), conditional=True)
    await registry.put("b", b"there before")
    directory = DataDirectory(tmp_path / "one")
    directory.acquire()
    copies = Copies(directory, InlineDatabase.open, inline)
    copies.scan()
    await move_entries(copies, registry)
    await move_entries(copies, registry)
    assert entries(bucket, "registry/") == ["registry/a.json", "registry/b.json"]
    kept = bucket.get("registry/b.json")
    assert kept is not None
    assert kept.data == b"there before"
    assert copies.terms == {}
    directory.release()


async def test_twenty_thousand_runs_are_listed_from_memory(tmp_path: Path) -> None:
    bucket = fake_bucket()
    names = [f"run-{number:05}" for number in range(20_000)]
    for name in names:
        bucket.put(f"cells/{name}/meta/00000000000000000001.json", b"{}")
    async with member(tmp_path / "one", bucket) as one:
        listed = one.client.calls["folders"]
        await one.node.perform("a-new-one", Append(Record(1, b"{}")))
        assert one.runs.all() == ["a-new-one", *names]
        # Nobody asked the bucket again for it.
        assert one.client.calls["folders"] == listed
