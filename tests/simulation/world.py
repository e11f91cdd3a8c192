"""A fleet of simulated machines over one bucket, and what happens to them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random  # noqa: TID251

from cellstore import epochlog, epochs, lineage, shipping, tenure
from tests.fakes.bucket import Bucket, BucketClient, Faults
from tests.simulation.history import History
from tests.simulation.loop import Killed, Life, VirtualLoop
from tests.simulation.machine import START, SimClock, SimDisk, copy_tree
from tests.simulation.process import Knobs, Process


class Seat:
    """The place of one node in the fleet: its name, its machine's clocks, its disk."""

    def __init__(self, node: str, clock: SimClock, disk: SimDisk) -> None:
        self.node = node
        self.clock = clock
        self.disk = disk
        self.boots = 0
        self.faults = Faults()
        self.process: Process | None = None


class World:
    """See above. `root` is an empty folder that the run may fill."""

    def __init__(
        self,
        loop: VirtualLoop,
        root: Path,
        rng: Random,
        knobs: Knobs,
        nodes: int,
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.knobs = knobs
        self.bucket = Bucket(lambda: START + loop.time(), loop.later)
        self.history = History(self.bucket, loop.time, ack_bucket=knobs.ack_bucket)
        self.disks: list[SimDisk] = []
        self.processes: list[Process] = []
        # Whether ended processes come back as they were, and nothing new goes wrong.
        self.healing = False
        self.returns: dict[str, float] = {"same": 1.0}
        self._root = root
        self._folders = 0
        self._starts = 0
        self.seats = [self._seat(f"n{number + 1}") for number in range(nodes)]

    def _seat(self, node: str) -> Seat:
        rng = self.rng
        clock = SimClock(
            self.loop,
            rng.uniform(0.955, 1.045),
            rng.uniform(0.955, 1.045),
            rng.choice((0.0, 0.0, rng.uniform(-5, 5), rng.uniform(-1e8, 1e8))),
        )
        seat = Seat(node, clock, self.new_disk())
        self.calm(seat)
        return seat

    def calm(self, seat: Seat) -> None:
        """End what is wrong between a node and the bucket."""
        fresh = Faults(latency=self.knobs.latency, timeout=(1.0, 4.0), no_date=self.knobs.no_date)
        for name in Faults.__dataclass_fields__:
            setattr(seat.faults, name, getattr(fresh, name))

    def folder(self) -> Path:
        self._folders += 1
        return self._root / str(self._folders)

    def new_disk(self) -> SimDisk:
        disk = SimDisk(f"d{len(self.disks)}", self.folder())
        self.disks.append(disk)
        return disk

    def another(self, disk: SimDisk) -> SimDisk:
        """The same disk id with the same content, elsewhere."""
        twin = SimDisk(disk.ident, self.folder())
        copy_tree(disk.path, twin.path)
        twin.chains = disk.copy_chains()
        self.disks.append(twin)
        return twin

    # Starting and ending

    def start(self, seat: Seat) -> Process:
        assert seat.process is None or seat.process.life.dead
        self._starts += 1
        name = f"{seat.node}#{self._starts}"
        self.history.note("start", name, seat.disk.ident, seat.boots)
        process = Process(
            name,
            seat.node,
            seat.disk,
            f"{seat.node}.{seat.boots}",
            seat.clock,
            BucketClient(self.bucket, seat.faults, Random(self.rng.getrandbits(32))),
            self.knobs,
            self.history,
            self.loop,
            Random(self.rng.getrandbits(32)),
            self.alarm,
        )
        process.die = lambda: self.end(process)
        seat.process = process
        self.processes.append(process)
        return process

    def end(self, process: Process) -> None:
        """A process is gone. Its disk stays as it is at this instant."""
        if process.life.dead:
            return
        self.history.note("end", process.name)
        process.kill()
        disk = process.disk
        if not disk.gone:
            # What the dead process still has open is not to be disturbed, nor to disturb.
            path = self.folder()
            copy_tree(disk.path, path)
            disk.path = path
        seat = self.seat_of(process)
        if seat is not None:
            self.loop.apart(self._come_back(seat, process))

    def alarm(self, process: Process) -> None:
        self.history.note("alarm", process.name)
        self.end(process)

    def seat_of(self, process: Process) -> Seat | None:
        return next((seat for seat in self.seats if seat.process is process), None)

    async def _come_back(self, seat: Seat, process: Process) -> None:
        await asyncio.sleep(self.rng.choice((0.1, 1.0, 3.0, 12.0)))
        if seat.process is not process or not (self.returns or self.healing):
            return
        how = "same"
        if not self.healing:
            (how,) = self.rng.choices(list(self.returns), list(self.returns.values()))
        self.bring_back(seat, how)

    def bring_back(self, seat: Seat, how: str) -> None:
        """Start a node again: `same`, after a `reboot`, with its disk `lost` or `rolled back`."""
        self.history.note("return", seat.node, how)
        disk = seat.disk
        if how == "reboot":
            seat.boots += 1
            if self.rng.random() < 0.5:
                lose_unsynced(disk)
        elif how == "lost":
            disk.gone = True
            seat.disk = self.new_disk()
        elif how == "rolled back" and disk.earlier is not None:
            path, chains = disk.earlier
            disk.gone = True
            seat.disk = SimDisk(disk.ident, self.folder())
            copy_tree(path, seat.disk.path)
            seat.disk.chains = {place: dict(chain) for place, chain in chains.items()}
            self.disks.append(seat.disk)
        self.start(seat)

    def snapshot(self, disk: SimDisk) -> None:
        """Remember a disk as it is now."""
        path = self.folder()
        copy_tree(disk.path, path)
        disk.earlier = (path, disk.copy_chains())

    def move(self, seat: Seat) -> None:
        """The volume goes to another machine, while the process that uses it goes on."""
        old = seat.process
        assert old is not None
        twin = self.another(seat.disk)
        seat.disk.gone = True
        seat.disk = twin
        seat.boots += 1
        seat.process = None
        self.start(seat)

    def pause(self, life: Life, secs: float) -> None:
        """Stop a process, and let it go on after so many seconds."""
        if life.dead or life.stopped:
            return
        self.history.note("pause", life.name, round(secs, 3))
        life.stopped = True

        def go_on() -> None:
            self.history.note("go on", life.name)
            life.go_on()

        self.loop.later(secs, go_on)

    def reachable(self) -> list[Process]:
        """The nodes that clients know of."""
        return [process for process in self.processes if process.ready and not process.life.dead]

    def cut(self, life: Life) -> None:
        """A process makes a file or folder durable."""
        for process in reversed(self.processes):
            if process.life is life:
                process.sync()
                return
        raise Killed

    def close(self) -> None:
        for process in self.processes:
            process.directory.release()
            for connection in process.copies:
                connection.close()
        shutil.rmtree(self._root, ignore_errors=True)


def lose_unsynced(disk: SimDisk) -> None:
    """What was written and not made durable is gone when the power goes."""
    for hint in disk.path.glob("cells/*/*/epoch.json"):
        hint.write_bytes(b"")


@contextmanager
def thresholds(*, small: bool) -> Iterator[None]:
    """Make deltas, folds and merges happen with little data."""
    if not small:
        yield
        return
    with ExitStack() as stack:
        for module, name, value in (
            (epochs, "MAX_DELTA", 700),
            (shipping, "MAX_DELTA", 700),
            (shipping, "_FEW", 2000),
            (lineage, "MIN_FOLD", 4000),
            (lineage, "_FAN_IN", 3),
            (lineage, "MAX_PIECES", 9),
            (epochlog, "KEEP_SECS", 5.0),
            (tenure, "KEEP_SECS", 5.0),
        ):
            stack.enter_context(patched(module, name, value))
        yield


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value for a while."""
    real = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, real)
