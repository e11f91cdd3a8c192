"""What directed scenarios are written with: nodes, requests, and moments in the bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251
from typing import Any

from cellstore.conditions import Condition
from cellstore.operations import Append, DeleteBlob, PutBlob, ReadBlob, ReadRecords
from cellstore.records import Record
from tests.fakes.bucket import Mutation
from tests.simulation.clients import LIMIT, Client
from tests.simulation.ending import come_to_rest
from tests.simulation.process import Knobs, Process, Reply
from tests.simulation.run import Result, play
from tests.simulation.world import Seat, World

CELL = "c0"

KNOBS = Knobs(
    ttl=4.0,
    sync_secs=0.5,
    idle_secs=300.0,
    max_open_cells=10,
    ack_bucket=False,
    slow_disk=0.0,
    slow_commit=0.0,
    max_disk=None,
    latency=(0.01, 0.01),
    no_date=False,
    small=False,
)


class Stage:
    """A world of two nodes that are ready, and one client that asks what it is told to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = world.history
        self.loop = world.loop
        self._rng = Random(1)
        self._numbers = 0
        self.client = Client("a1", [CELL], world.reachable, world.history, self._rng, 1)
        world.returns = {}

    @property
    def one(self) -> Seat:
        return self.world.seats[0]

    @property
    def two(self) -> Seat:
        return self.world.seats[1]

    def process(self, seat: Seat) -> Process:
        assert seat.process is not None
        return seat.process

    async def start(self, seat: Seat, *, boot: bool = False) -> None:
        """Start a node on the disk of its seat, after a reboot or not, and wait for it."""
        seat.boots += boot
        self.world.start(seat)
        await self.until(lambda: self.process(seat).ready)

    def kill(self, seat: Seat) -> None:
        self.world.end(self.process(seat))

    async def until(self, holds: Callable[[], bool], secs: float = 60.0) -> None:
        """Wait until something holds; that it never does is a violation."""
        for _ in range(round(secs / 0.01)):
            if holds():
                return
            await asyncio.sleep(0.01)
        self.expect(holds(), "what was waited for did not come")

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.history.violate(what)

    async def ask(self, seat: Seat, operation: Any, cell: str = CELL) -> Reply:
        """Ask one node, and wait for as long as a client does."""
        self._numbers += 1
        attempt = self.history.ask(f"s{self._numbers}", cell, operation, self.process(seat))
        future = self.process(seat).ask(attempt)
        await asyncio.wait([future], timeout=30)
        return future.result() if future.done() else Reply("unknown")

    def asking(self, seat: Seat, operation: Any, cell: str = CELL) -> asyncio.Task[Reply]:
        """Ask one node, and go on meanwhile."""
        return self.loop.apart(self.ask(seat, operation, cell))

    def record(self, size: int = 10) -> Append:
        self._numbers += 1
        text = b'{"n":%d,"pad":"%s"}' % (self._numbers, self._rng.randbytes(size).hex().encode())
        return Append(Record(self._numbers, text))

    def blob(self, key: str = "k", condition: Condition | None = None) -> PutBlob:
        self._numbers += 1
        return PutBlob(key, b"%d" % self._numbers, condition)

    async def done(self, seat: Seat, operation: Any, cell: str = CELL) -> Any:
        """Ask one node, which must do it. Returns the outcome."""
        reply = await self.ask(seat, operation, cell)
        self.expect(reply.kind == "done", f"{seat.node} did not do {type(operation).__name__}")
        return reply.value

    async def read(self, seat: Seat) -> Any:
        return await self.done(seat, ReadRecords(LIMIT))

    async def blob_of(self, seat: Seat, key: str = "k") -> Any:
        return await self.done(seat, ReadBlob(key, LIMIT))

    async def gone(self, seat: Seat, key: str = "k") -> None:
        await self.done(seat, DeleteBlob(key))

    def at(self, holds: Callable[[Mutation], bool], work: Callable[[], object]) -> None:
        """Do something at the first change of the bucket for which `holds`."""
        hooks = self.world.bucket.hooks

        def look(mutation: Mutation) -> None:
            if holds(mutation):
                hooks.remove(look)
                work()

        hooks.append(look)

    def at_epoch(self, epoch: int, work: Callable[[], object]) -> None:
        self.at(lambda change: change.key.endswith(f"meta/{epoch:020d}.json"), work)

    @property
    def top(self) -> int:
        """The highest epoch of the cell."""
        return self.history.cell(CELL).top

    @property
    def published(self) -> bool:
        """Whether all that was acknowledged is in the bucket."""
        return not self.history.cell(CELL).unpublished

    def orphans(self, seat: Seat) -> list[str]:
        return sorted(path.name for path in seat.disk.path.glob("orphans/*"))


Script = Callable[[Stage], Awaitable[None]]


def perform(name: str, script: Script, knobs: Knobs) -> Result:
    """Play a scenario to its end, where all that always holds is checked too."""

    async def main(world: World) -> None:
        stage = Stage(world)
        for seat in world.seats:
            # The clocks of scenarios are right, unless one sets them.
            seat.clock.off = 0.0
            await stage.start(seat)
        await script(stage)
        for seat in world.seats:
            if seat.process is not None and seat.process.life.dead:
                world.start(seat)
        cells = sorted(name for name, cell in world.history.cells.items() if cell.top)
        await come_to_rest(world, stage.client, cells, quiet=False)

    return play(0, f"scenario {name}", Random(name), knobs, 2, main)
