"""What a node stands on: its clocks, its disk, its way to the bucket."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random  # noqa: TID251
from typing import Any, TypeVar

from cellstore import directory as directory_module
from cellstore.clock import Reading
from cellstore.database import InlineDatabase, Work
from cellstore.directory import DATABASE, DataDirectory
from cellstore.errors import CellstoreError, DiskFull
from cellstore.objects import Got, Listing, Put
from tests.fakes.bucket import BucketClient
from tests.simulation.history import Chain, Place
from tests.simulation.loop import VirtualLoop, current

T = TypeVar("T")

# 2026, so that times look like times.
START = 1_767_225_600.0


class SimClock:
    """The clocks of one machine, which go at their own rates and may be set."""

    def __init__(self, loop: VirtualLoop, boot_rate: float, wall_rate: float, off: float) -> None:
        self._loop = loop
        self._boot_rate = boot_rate
        self._wall_rate = wall_rate
        self.off = off

    def monotonic(self) -> float:
        return 1000.0 + self._loop.time() * self._boot_rate

    def reading(self) -> Reading:
        now = self._loop.time()
        return Reading(1000.0 + now * self._boot_rate, START + now * self._wall_rate + self.off)


class SimDisk:
    """A data directory: its id, where it is, and the versions of the copies in it."""

    def __init__(self, ident: str, path: Path) -> None:
        self.ident = ident
        self.path = path
        self.chains: dict[Place, Chain] = {}
        # Nothing in it counts any more: it was lost, rolled back, or moved away from a process.
        self.gone = False
        self.full = False
        self.earlier: tuple[Path, dict[Place, Chain]] | None = None

    def copy_chains(self) -> dict[Place, Chain]:
        return {place: dict(chain) for place, chain in self.chains.items()}


def copy_tree(source: Path, target: Path) -> None:
    """Copy a data directory as a killed process leaves it."""
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name == "staging":
                    (target / "staging").mkdir()
                else:
                    copy_tree(Path(entry.path), target / entry.name)
            elif not entry.name.endswith("-shm"):
                shutil.copyfile(entry.path, target / entry.name)


class SimDirectory(DataDirectory):
    """A data directory that can be full."""

    def __init__(self, disk: SimDisk, rng: Random) -> None:
        super().__init__(disk.path)
        self.disk = disk
        self._rng = rng

    def stage(self) -> Path:
        self.check_room()
        return super().stage()

    def shortage(self) -> CellstoreError | None:
        return DiskFull("the disk is full (probing)") if self.disk.full else None

    def check_room(self) -> None:
        if self.disk.full and self._rng.random() < 0.7:
            raise DiskFull("the disk is full (simulated)")

    def check_statement(self) -> None:
        """As SQLite fails where there is no room for a page."""
        if self.disk.full and self._rng.random() < 0.7:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error


class SimDatabase(InlineDatabase):
    """A database whose work is done at once, and heard of `delay` seconds later.

    `closed` is called when it is closed.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        loop: VirtualLoop,
        delay: Callable[[], float],
        closed: Callable[[], object],
    ) -> None:
        super().__init__(connection)
        self._loop = loop
        self._delay = delay
        self._closed = closed
        self._last = 0.0

    def post(self, work: Work[T], done: Callable[[T | Exception], object]) -> None:
        delay = self._delay()
        if delay == 0.0:
            return super().post(work, done)
        try:
            outcome: T | Exception = work(self._connection)
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            outcome = error
        # In the order in which it was done.
        self._last = max(self._last, self._loop.time() + delay)
        self._loop.call_at(self._last, done, outcome)
        return None

    async def close(self) -> None:
        self._closed()
        await super().close()


def place_of(path: Path) -> Place:
    """Which copy a database file belongs to."""
    assert path.name == DATABASE
    name, _, term = path.parent.name.rpartition(".")
    return name, int(term)


@contextmanager
def cut_syncs(cut: Callable[[Any], None]) -> Iterator[None]:
    """Nothing is synced, and where it would be, `cut` is called with the life that asked."""

    def sync(path: Path) -> None:
        life = current()
        if life is not None:
            cut(life)

    real = directory_module._sync
    directory_module._sync = sync
    try:
        yield
    finally:
        directory_module._sync = real


def no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Wire:
    """One node's way to the bucket. What was sent goes on by itself, also if the node dies."""

    def __init__(self, client: BucketClient, loop: VirtualLoop) -> None:
        self._client = client
        self._loop = loop

    async def _send(self, work: Coroutine[Any, Any, T]) -> T:
        answer: asyncio.Future[asyncio.Task[T]] = self._loop.create_future()

        def arrive(task: asyncio.Task[T]) -> None:
            if not answer.done():
                answer.set_result(task)
            elif not task.cancelled():
                task.exception()

        self._loop.apart(work).add_done_callback(arrive, context=self._loop.bare)
        task = await answer
        return task.result()

    async def create(self, key: str, data: bytes) -> Put:
        return await self._send(self._client.create(key, data))

    async def replace(self, key: str, data: bytes, etag: str | None) -> Put:
        return await self._send(self._client.replace(key, data, etag))

    async def put(self, key: str, data: bytes | Path) -> None:
        content = data.read_bytes() if isinstance(data, Path) else data
        await self._send(self._client.put(key, content))

    async def get(self, key: str) -> Got | None:
        return await self._send(self._client.get(key))

    async def fetch(self, key: str, path: Path) -> bool:
        got = await self._send(self._client.get(key))
        if got is None:
            return False
        with path.open("xb") as file:
            file.write(got.data)
        return True

    async def list(self, prefix: str, after: str = "") -> Listing:
        return await self._send(self._client.list(prefix, after))

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self._send(self._client.folders(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._send(self._client.delete(keys))
