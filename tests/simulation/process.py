"""One run of one node on a disk: the program's own parts, on a simulated machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random  # noqa: TID251
from typing import Any, NamedTuple

from cellstore.copies import Copies
from cellstore.database import connect
from cellstore.errors import DiskFull, OwnedElsewhere, Unavailable
from cellstore.fleet import Fleet
from cellstore.identity import known_boots
from cellstore.index import RunIndex
from cellstore.node import Node
from cellstore.objects import StoreFault
from cellstore.ownership import Identity
from cellstore.tenure import Tenure
from tests.fakes.bucket import BucketClient, Faults
from tests.simulation.history import Attempt, History, Place, Traced
from tests.simulation.loop import Killed, Life, VirtualLoop
from tests.simulation.machine import (
    SimClock,
    SimDatabase,
    SimDirectory,
    SimDisk,
    Wire,
    no_room,
    place_of,
)
from tests.simulation.versions import Version


class Knobs(NamedTuple):
    """How the nodes of a run and their ways to the bucket are.

    Times are in seconds, `latency` is one way. `small`: thresholds are, so that little data is
    folded, merged and collected.
    """

    ttl: float
    sync_secs: float
    idle_secs: float
    max_open_cells: int
    ack_bucket: bool
    slow_disk: float
    slow_commit: float
    max_disk: int | None
    latency: tuple[float, float]
    no_date: bool
    small: bool


class Reply(NamedTuple):
    """What a client gets. `kind` is done, elsewhere, refused or unknown."""

    kind: str
    value: Any = None


class Process:
    """A node from its start to its end. Its life may end between any two of its steps."""

    def __init__(
        self,
        name: str,
        node: str,
        disk: SimDisk,
        boot: str,
        clock: SimClock,
        client: BucketClient,
        knobs: Knobs,
        history: History,
        loop: VirtualLoop,
        rng: Random,
        alarm: Callable[[Process], None],
    ) -> None:
        self.name = name
        self.node_name = node
        self.disk = disk
        self.boot = boot
        self.clock = clock
        self.faults: Faults = client.faults
        self.life = Life(loop, name)
        self.copies: dict[sqlite3.Connection, Place] = {}
        self.built: dict[str, Version] = {}
        self.tenures: dict[str, Tenure] = {}
        self.ready = False
        self.ended: asyncio.Future[None] = loop.create_future()
        # Counts down with each sync of a file or folder; the process dies at 0.
        self.file_fuse: int | None = None
        # Counts down with each write that is executed; something is done at 0.
        self.write_fuse: int | None = None
        self.burn_write: Callable[[], object] = lambda: None
        self.die: Callable[[], None] = lambda: None
        self._knobs = knobs
        self._history = history
        self._loop = loop
        self._rng = rng
        # In the order of their arrival.
        self._asked: dict[asyncio.Future[Reply], None] = {}
        self._numbers = 0
        self.directory = SimDirectory(disk, rng)
        self.directory.acquire()
        copies = Copies(self.directory, self._open, self._offload)
        copies.scan()
        boots = known_boots(self.directory, boot)
        me = Identity(node, None, disk.ident, boot, knobs.ttl, boots)
        self.fleet = Fleet(
            copies,
            Wire(client, loop),
            clock,
            self._fresh,
            me,
            RunIndex(),
            sync_secs=knobs.sync_secs,
            ack_bucket=knobs.ack_bucket,
            max_lag_secs=knobs.ttl,
            max_disk=knobs.max_disk,
            alarm=lambda _: alarm(self),
        )
        self.node = Node(
            self.fleet.claims,
            clock,
            idle_secs=knobs.idle_secs,
            max_open_cells=knobs.max_open_cells,
        )
        self.fleet.attach(self.node)
        add = self.fleet.replicator.add

        def note_tenure(tenure: Tenure) -> None:
            self.tenures[tenure.name] = tenure
            add(tenure)

        self.fleet.replicator.add = note_tenure  # type: ignore[method-assign]
        self._going: asyncio.Task[None] | None = None
        self.life.start(self._run())

    @property
    def alive(self) -> bool:
        return not self.life.dead

    def believes(self, cell: str) -> bool:
        """See Holder."""
        tenure = self.tenures.get(cell)
        return self.alive and tenure is not None and tenure.holds()

    def unsettled(self) -> list[str]:
        """What of its cells is not in the bucket, as far as the process knows."""
        tenures = self.fleet.replicator
        found = [f"{tenure.name} is not published" for tenure in tenures if tenure.dirty]
        served = {cell.name for cell in self.node.open_cells()}
        marks = [mark for mark in self.directory.marks() if mark[0] not in served]
        return found + [f"{mark} is marked as dirty and not open" for mark in marks]

    async def _run(self) -> None:
        while True:
            try:
                await self.fleet.start()
                break
            except StoreFault:
                await asyncio.sleep(1.0)
        self._history.note("ready", self.name)
        self.ready = True
        self._going = asyncio.create_task(self.fleet.run())
        interval = min(1.0, self._knobs.idle_secs / 4)
        while self.ready:
            await asyncio.sleep(interval)
            await self.node.hibernate_idle()

    def _fresh(self) -> str:
        self._numbers += 1
        fresh = f"{self._rng.getrandbits(64):016x}{self._numbers:x}"
        self._history.nonces[fresh] = self
        return fresh

    async def _open(self, path: Path) -> SimDatabase:
        connection = connect(path)
        self._history.opened(self, connection, place_of(path))
        return SimDatabase(
            connection,
            self._loop,
            lambda: self._rng.random() * self._knobs.slow_commit,
            lambda: self.copies.pop(connection, None),
        )

    async def _offload(self, work: Callable[..., Any], *args: Any) -> Any:
        if self._knobs.slow_disk:
            await asyncio.sleep(self._rng.random() * self._knobs.slow_disk)
        self.cut()
        return work(*args)

    def cut(self) -> None:
        """A moment in blocking work. Raises Killed where the process dies of it."""
        if self.life.dead:
            raise Killed
        if self.file_fuse is not None:
            self.file_fuse -= 1
            if self.file_fuse <= 0:
                self.die()
                raise Killed

    def sync(self) -> None:
        """A file or folder is made durable. Raises Killed, or OSError where there is no room."""
        self.cut()
        if self.disk.full and self._rng.random() < 0.3:
            raise no_room()

    # Requests

    def ask(self, attempt: Attempt) -> asyncio.Future[Reply]:
        """Have the node do a request. The future belongs to the client."""
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self._asked[reply] = None
        reply.add_done_callback(lambda _: self._asked.pop(reply, None), context=self._loop.bare)
        self.life.start(self._serve(attempt, reply))
        return reply

    async def _serve(self, attempt: Attempt, future: asyncio.Future[Reply]) -> None:
        reply = await self._answer(attempt)
        if not future.done():
            future.set_result(reply)

    async def _answer(self, attempt: Attempt) -> Reply:
        history = self._history
        operation: Any = Traced(attempt, history, self._about_to_write)
        try:
            outcome = await self.node.perform(attempt.cell, operation)
        except OwnedElsewhere as fault:
            history.refuse(attempt, f"owned by {fault.owner}")
            return Reply("elsewhere", fault.owner)
        except DiskFull:
            history.refuse(attempt, "disk full")
            return Reply("unknown")
        except Unavailable as fault:
            history.leave_open(attempt, str(fault))
            return Reply("unknown")
        except Exception as fault:  # noqa: BLE001 - none of them may be
            if not self.life.dead:
                history.violate(f"{attempt.label}: {type(fault).__name__}: {fault}")
            return Reply("unknown")
        if not self.life.dead:
            history.answer(attempt)
        return Reply("done", outcome)

    def _about_to_write(self) -> None:
        self.directory.check_statement()
        if self.write_fuse is not None:
            self.write_fuse -= 1
            if self.write_fuse <= 0:
                self.write_fuse = None
                self.burn_write()

    # The end

    def kill(self) -> None:
        """End its life here and now."""
        self.life.dead = True
        self.ready = False
        for reply in list(self._asked):
            if not reply.done():
                reply.set_result(Reply("unknown"))
        if not self.ended.done():
            self.ended.set_result(None)

    def drain(self) -> None:
        """Stop as on SIGTERM: what is under way ends, all is published and released."""
        self.life.start(self._drain())

    async def _drain(self) -> None:
        # Harder than it is: requests may go on coming until the end.
        if self._rng.random() < 0.5:
            self.ready = False
            if self._asked and self._rng.random() < 0.7:
                await asyncio.wait(list(self._asked), timeout=10)
        if self._going is not None:
            self._going.cancel()
            await asyncio.wait([self._going])
        self.fleet.claims.draining = True
        try:
            async with asyncio.timeout(25):
                await self.node.close()
            self._history.note("drained", self.name)
        except TimeoutError:
            self._history.note("drain timed out", self.name)
            await self.fleet.replicator.stop()
        self.die()
