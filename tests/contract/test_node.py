"""The node on both database adapters: creating, opening, hibernating, room, and broken cells."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cellstore import node as node_module
from cellstore import schema
from cellstore.alone import Alone
from cellstore.conditions import MUST_BE_ABSENT, parse_condition
from cellstore.copies import Copies, Offload
from cellstore.database import Database, InlineDatabase, OpenDatabase, ThreadedDatabase
from cellstore.directory import REGISTRY, DataDirectory
from cellstore.errors import CellBroken, DiskFull, NewerFormat, StartRefused, Unavailable
from cellstore.index import RunIndex
from cellstore.node import Node
from cellstore.operations import (
    Append,
    Blob,
    DeleteBlob,
    ListBlobs,
    PutBlob,
    ReadBlob,
    ReadRecords,
    Replace,
)
from cellstore.records import Record
from tests.fakes import ManualClock, inline

LIMIT = 2**30
MUST_EXIST = parse_condition(b"*", None)


class KnownNode(Node):
    """A node, its index of runs, and its directory."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.index: RunIndex
        self.directory: DataDirectory

    def runs(self) -> list[str]:
        return self.index.all()


@dataclass
class Fixture:
    """A node, and what it stands on."""

    root: Path
    open_database: OpenDatabase
    offload: Offload
    clock: ManualClock = field(default_factory=ManualClock)
    opened: list[str] = field(default_factory=list)
    nodes: list[KnownNode] = field(default_factory=list)

    async def start(self, max_open_cells: int = 100) -> KnownNode:
        directory = DataDirectory(self.root)
        directory.acquire()

        async def open_database(path: Path) -> Database:
            self.opened.append(path.parent.name)
            return await self.open_database(path)

        copies = Copies(directory, open_database, self.offload)
        copies.scan()
        runs = RunIndex()
        node = KnownNode(
            Alone(copies, runs.add),
            self.clock,
            idle_secs=300,
            max_open_cells=max_open_cells,
        )
        node.index = runs
        runs.merge(copies.terms.keys() - {REGISTRY})
        node.directory = directory
        self.nodes.append(node)
        return node

    async def stop(self) -> None:
        """Close the newest node, as a clean stop does."""
        node = self.nodes.pop()
        await node.close()
        node.directory.release()

    def file(self, name: str) -> Path:
        (path,) = self.root.glob(f"cells/*/{name}.1/cell.db")
        return path


@pytest.fixture(params=[(ThreadedDatabase, asyncio.to_thread), (InlineDatabase, inline)])
async def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Fixture]:
    database, offload = request.param
    fixture = Fixture(tmp_path / "data", database.open, offload)
    yield fixture
    while fixture.nodes:
        await fixture.stop()


def open_names(node: Node) -> list[str]:
    return [cell.name for cell in node.open_cells()]


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


async def test_a_cell_comes_with_its_first_write(fixture: Fixture) -> None:
    node = await fixture.start()
    before = files(fixture.root)
    assert await node.perform("a", ReadRecords(LIMIT)) is None
    assert await node.perform("a", ReadBlob("k", LIMIT)) is None
    assert list(await node.perform("a", ListBlobs())) == []
    assert await node.perform("a", DeleteBlob("k")) is True
    assert await node.perform("a", DeleteBlob("k", MUST_EXIST)) is False
    assert await node.perform("a", PutBlob("k", b"v", MUST_EXIST)) is False
    assert node.runs() == []
    assert files(fixture.root) == before
    assert await node.perform("a", PutBlob("k", b"v", MUST_BE_ABSENT)) is True
    assert node.runs() == ["a"]
    assert await node.perform("a", PutBlob("k", b"w", MUST_BE_ABSENT)) is False
    assert (await node.perform("a", ReadBlob("k", LIMIT))).data == b"v"


async def test_a_first_write_that_fails_leaves_nothing(fixture: Fixture) -> None:
    node = await fixture.start()
    before = files(fixture.root)
    twice = Replace([Record(1, b"{}"), Record(1, b"{}")])
    with pytest.raises(sqlite3.IntegrityError):
        await node.perform("a", twice)
    assert node.runs() == []
    assert files(fixture.root) == before


async def test_many_first_writes_of_one_run_at_once(fixture: Fixture) -> None:
    node = await fixture.start()
    writes = [node.perform("a", Append(Record(n, b'{"seq":%d}' % n))) for n in range(20)]
    assert await asyncio.gather(*writes) == [None] * 20
    assert node.runs() == ["a"]
    text = b"".join(await node.perform("a", ReadRecords(LIMIT)))
    assert text.count(b"seq") == 20


async def test_a_restart_finds_all_runs_and_opens_none(fixture: Fixture) -> None:
    node = await fixture.start()
    names = ["b", "a.7", "A", "x" * 200, "..."]
    for name in names:
        await node.perform(name, PutBlob("k", name.encode()))
    await fixture.stop()
    fixture.opened.clear()
    node = await fixture.start()
    assert node.runs() == sorted(names)
    assert fixture.opened == []
    for name in names:
        assert (await node.perform(name, ReadBlob("k", LIMIT))).data == name.encode()
    assert fixture.opened == [f"{name}.1" for name in names]


async def test_idle_cells_hibernate(fixture: Fixture) -> None:
    node = await fixture.start()
    for name in ("a", "b"):
        await node.perform(name, PutBlob("k", b"v"))
        await node.perform(name, ReadBlob("k", LIMIT))
    fixture.clock.now += 299
    await node.perform("a", ReadBlob("k", LIMIT))
    fixture.clock.now += 2
    await node.hibernate_idle()
    assert open_names(node) == ["a"]
    assert [p.name for p in fixture.file("b").parent.iterdir()] == ["cell.db"]
    assert (await node.perform("b", ReadBlob("k", LIMIT))).data == b"v"
    assert open_names(node) == ["a", "b"]


async def test_the_least_recently_used_makes_room(fixture: Fixture) -> None:
    node = await fixture.start(max_open_cells=2)
    for name in ("a", "b", "c"):
        await node.perform(name, PutBlob("k", b"v"))
    await node.perform("a", ReadBlob("k", LIMIT))
    await node.perform("b", ReadBlob("k", LIMIT))
    await node.perform("a", ReadBlob("k", LIMIT))
    await node.perform("c", ReadBlob("k", LIMIT))
    assert open_names(node) == ["a", "c"]


async def test_a_cell_in_use_is_never_closed(fixture: Fixture) -> None:
    node = await fixture.start(max_open_cells=1)
    for name in ("a", "b"):
        await node.perform(name, PutBlob("k", b"v"))
    await node.perform("a", ReadBlob("k", LIMIT))
    long = [node.perform("a", Append(Record(n, b"{}"))) for n in range(300)]
    outcomes = await asyncio.gather(*long, node.perform("b", ReadBlob("k", LIMIT)))
    assert outcomes[:-1] == [None] * 300
    assert outcomes[-1].data == b"v"


async def test_who_finds_no_room_is_told_in_the_end(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "ROOM_WAIT", 0.01)
    node = await fixture.start(max_open_cells=1)
    for name in ("a", "b"):
        await node.perform(name, PutBlob("k", b"v"))
    await node.perform("a", ReadBlob("k", LIMIT))
    cell = node._open["a"]
    tries = 0
    take_room = node.take_room

    async def counted() -> None:
        nonlocal tries
        tries += 1
        await take_room()

    monkeypatch.setattr(node, "take_room", counted)
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    cell._batch = [(ReadBlob("k", LIMIT), never)]
    fixture.opened.clear()
    waiting = [node.perform("b", ReadBlob("k", LIMIT)) for _ in range(3)]
    taken = await asyncio.gather(*waiting, return_exceptions=True)
    # Those who waited with the first do not wait all over again after it.
    assert [type(outcome) for outcome in taken] == [Unavailable] * 3
    assert "max-open-cells" in str(taken[0])
    assert tries == 1
    cell._batch = []
    monkeypatch.setattr(node_module, "ROOM_WAIT", 10.0)
    assert (await node.perform("b", ReadBlob("k", LIMIT))).data == b"v"


def test_probes_of_the_disk_do_not_meet(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    directory.acquire()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: directory.shortage(), range(200)))
    assert answers == [None] * 200
    assert list((tmp_path / "data" / "staging").iterdir()) == []
    directory.release()


async def test_many_cells_in_little_room(fixture: Fixture) -> None:
    node = await fixture.start(max_open_cells=3)

    async def work(name: str) -> int:
        for n in range(10):
            await node.perform(name, Append(Record(n, b'{"seq":%d}' % n)))
        return b"".join(await node.perform(name, ReadRecords(LIMIT))).count(b"seq")

    names = [f"run-{n}" for n in range(12)]
    assert await asyncio.gather(*map(work, names)) == [10] * 12
    assert len(open_names(node)) <= 3
    assert node._held == len(open_names(node))


@pytest.mark.parametrize(
    "damage", ["rubbish", "empty", "missing", "page", "table", "other", "newer"]
)
async def test_a_broken_cell_harms_no_other(fixture: Fixture, damage: str) -> None:
    node = await fixture.start()
    for name in ("bad", "good"):
        await node.perform(name, Replace([Record(n, b'{"seq":%d}' % n) for n in range(3000)]))
    await fixture.stop()
    path = fixture.file("bad")
    saved = path.read_bytes()
    if damage == "rubbish":
        path.write_bytes(b"rubbish" * 1000)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "missing":
        path.unlink()
    elif damage == "page":
        path.write_bytes(saved[:8192] + b"\xff" * 4096 + saved[12288:])
    elif damage == "table":
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE records")
        connection.close()
    else:
        connection = sqlite3.connect(path)
        pragma = "user_version" if damage == "newer" else "application_id"
        connection.execute(f"PRAGMA {pragma} = {schema.FORMAT + 1}")
        connection.close()
    node = await fixture.start()
    expected = NewerFormat if damage == "newer" else CellBroken
    for operation in (ReadRecords(LIMIT), ReadRecords(LIMIT)):
        with pytest.raises(expected, match="cell `bad` cannot be read"):
            await node.perform("bad", operation)
        assert b"".join(await node.perform("good", operation)).count(b"seq") == 3000
    assert list(node.broken_cells()) == ["bad"]
    assert node.runs() == ["bad", "good"]
    # Somebody repairs it: no restart is needed.
    path.write_bytes(saved)
    assert b"".join(await node.perform("bad", ReadRecords(LIMIT))).count(b"seq") == 3000
    assert node.broken_cells() == {}
    assert node._held == len(node.open_cells())


async def test_a_full_disk_keeps_cells_from_opening_but_reads_are_served(
    fixture: Fixture,
) -> None:
    node = await fixture.start()
    await node.perform("a", PutBlob("k", b"v"))
    whole = fixture.open_database

    async def full(path: Path) -> Database:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
        raise error

    fixture.open_database = full
    node.directory.shortage = lambda: DiskFull("no room")  # type: ignore[method-assign]
    blob = await node.perform("a", ReadBlob("k", LIMIT))
    assert isinstance(blob, Blob)
    assert blob.data == b"v"
    with pytest.raises(DiskFull, match="cell `a`"):
        await node.perform("a", PutBlob("k", b"w"))
    assert node.broken_cells() == {}
    fixture.open_database = whole
    assert await node.perform("a", PutBlob("k", b"w")) is True


async def test_a_client_that_goes_away_while_a_cell_is_made(fixture: Fixture) -> None:
    node = await fixture.start()
    task = asyncio.create_task(node.perform("a", PutBlob("k", b"v")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    blob = await node.perform("a", ReadBlob("k", LIMIT))
    # A cell that was being made is made; with the twin it was not begun.
    assert (blob is not None) is (len(node.runs()) == 1)
    await node.perform("a", PutBlob("k", b"w"))
    assert node.runs() == ["a"]


async def test_a_stray_entry_stops_the_start(fixture: Fixture) -> None:
    node = await fixture.start()
    await node.perform("a", PutBlob("k", b"v"))
    await fixture.stop()
    stray = fixture.file("a").parent.with_name("stray")
    stray.mkdir()
    directory = DataDirectory(fixture.root)
    directory.acquire()
    with pytest.raises(StartRefused, match=r"stray is not a cell; move it out of the way"):
        list(directory.copies())
    directory.release()


async def test_what_a_crash_left_in_staging_is_no_cell(fixture: Fixture) -> None:
    await fixture.start()
    await fixture.stop()
    leftover = fixture.root / "staging" / "1"
    leftover.mkdir()
    (leftover / "cell.db").write_bytes(b"half")
    node = await fixture.start()
    assert node.runs() == []
    assert list((fixture.root / "staging").iterdir()) == []


async def test_closing_waits_for_what_is_under_way(fixture: Fixture) -> None:
    node = await fixture.start()
    writes = [
        asyncio.create_task(node.perform(f"run-{n % 3}", Append(Record(n, b"{}"))))
        for n in range(30)
    ]
    await asyncio.sleep(0)
    await node.close()
    await asyncio.gather(*writes)
    await node.close()
    assert node.open_cells() == []
    assert not list(fixture.root.rglob("*-wal"))
