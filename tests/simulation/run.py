"""One run: a fleet, clients and faults drawn from a seed, and a quiet end where all is checked."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import shutil
import sqlite3
import tempfile
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random  # noqa: TID251
from typing import Any

import structlog

from cellstore.operations import ListBlobs, ReadBlob, ReadRecords, Touch
from tests.simulation.clients import LIMIT, Client
from tests.simulation.history import History
from tests.simulation.loop import VirtualLoop, bury
from tests.simulation.machine import cut_syncs
from tests.simulation.director import Director
from tests.simulation.process import Knobs
from tests.simulation.profiles import Profile
from tests.simulation.stored import Damaged
from tests.simulation.world import World, thresholds

# Where files are made and deleted: in memory, if there is such a place.
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended. `digest` is that of its trace."""

    seed: int
    profile: str
    violation: str | None
    digest: str
    counts: dict[str, int]
    steps: int
    secs: float
    trace: list[tuple[Any, ...]]

    def tell(self, lines: int = 60) -> str:
        """What to print of a run that failed."""
        last = "\n".join(" ".join(map(str, event))[:400] for event in self.trace[-lines:] if lines)
        return (
            f"seed {self.seed}, profile {self.profile}: {self.violation}\n{last}\n"
            f"again: python -m tests.simulation --from {self.seed} --seeds 1 "
            f"--profile {self.profile}"
        )


def run_seed(seed: int, profile: Profile) -> Result:
    """Run one seed."""
    rng = Random(f"{profile.name} {seed}")
    loop = VirtualLoop()
    root = Path(tempfile.mkdtemp(prefix="cells-", dir=_MEMORY if _MEMORY.is_dir() else None))
    small = rng.random() < profile.small
    knobs = Knobs(
        ttl=rng.choice(profile.ttls),
        sync_secs=rng.choice(profile.syncs),
        idle_secs=rng.choice(profile.idles),
        max_open_cells=rng.choice(profile.opens),
        ack_bucket=rng.random() < profile.ack_bucket,
        slow_disk=rng.choice((0.005, 0.2)) if rng.random() < profile.slow_disk else 0.0,
        slow_commit=rng.choice((0.0, 0.01, 0.1)),
        max_disk=rng.choice((None, None, 30_000)),
    )
    slow = rng.random() < profile.slow_bucket
    asyncio.set_event_loop(loop)
    world = World(
        loop,
        root,
        rng,
        knobs,
        rng.randint(*profile.nodes),
        (0.05, 0.4) if slow else (0.001, 0.03),
        no_date=rng.random() < profile.no_date,
    )
    history = world.history
    history.note("knobs", *knobs, small, slow, world.no_date)
    history.on_violation = loop.stop
    try:
        with _logs_to(history), cut_syncs(world.cut), thresholds(small=small):
            main = loop.apart(_live(world, profile, 1600 if small else 60))
            main.add_done_callback(lambda _: loop.stop(), context=loop.bare)
            _turn(loop, history)
            if main.done() and (fault := main.exception()) is not None:
                raise fault
            for bad in loop.faults:
                history.violate(f"nobody took {bad.get('exception')!r}: {bad['message']}")
            result = _result(seed, profile, history, loop)
            for process in world.processes:
                process.life.dead = True
            bury([process.life for process in world.processes])
            return result
    finally:
        world.close()
        asyncio.set_event_loop(None)
        loop.close()


def _turn(loop: VirtualLoop, history: History) -> None:
    try:
        loop.run_forever()
    except RuntimeError as fault:
        history.violate(str(fault))


def _result(seed: int, profile: Profile, history: History, loop: VirtualLoop) -> Result:
    digest = hashlib.sha256(repr(history.trace).encode()).hexdigest()
    violation = history.violations[0] if history.violations else None
    return Result(
        seed,
        profile.name,
        violation,
        digest,
        history.counts,
        loop.steps,
        loop.time(),
        history.trace,
    )


async def _live(world: World, profile: Profile, payload: int) -> None:
    rng, loop, history = world.rng, world.loop, world.history
    world.returns = profile.returns
    for seat in world.seats:
        world.start(seat)
    cells = [f"c{number}" for number in range(rng.randint(*profile.cells))]
    think = rng.choice(profile.think)
    end = loop.time() + rng.uniform(*profile.secs)
    clients = [
        Client(f"a{number + 1}", cells, world.reachable, history, rng, payload)
        for number in range(rng.randint(*profile.clients))
    ]
    works = [
        loop.apart(client.run(lambda: loop.time() >= end, think))
        for client in clients
    ]
    director = loop.apart(Director(world, profile).run(end))
    await asyncio.wait([*works, director])
    for work in (*works, director):
        work.result()
    await _come_to_rest(world, clients[0], cells, quiet=rng.random() < profile.quiet)


async def _come_to_rest(world: World, client: Client, cells: list[str], *, quiet: bool) -> None:
    """End all faults, and see that every cell is served and all is published."""
    history, loop = world.history, world.loop
    history.note("heal")
    world.healing = True
    for seat in world.seats:
        world.calm(seat)
    for disk in world.disks:
        disk.full = False
    for process in world.processes:
        process.life.fuse = process.file_fuse = None
        if process.life.stopped:
            process.life.go_on()
        if world.seat_of(process) is None and not process.life.dead:
            # Its volume is elsewhere by now.
            world.end(process)
    begun = loop.time()
    while any(seat.process is None or not seat.process.ready for seat in world.seats):
        await asyncio.sleep(0.5)
        if loop.time() - begun > 120:
            return history.violate("a node does not start")
    for cell in cells:
        await _serve_somewhere(world, client, cell)
    begun = loop.time()
    while _unsettled(world) and loop.time() - begun < 10 * world.knobs.ttl + 60:
        await asyncio.sleep(0.5)
    for _ in range(12 if quiet else 0):
        await asyncio.sleep(25)
        for cell in cells:
            await client.ask("quiet", cell, Touch(), client.favourite.get(cell))
    check_end(world, cells, quiet=quiet)
    return None


async def _serve_somewhere(world: World, client: Client, cell: str) -> None:
    """Some node serves the cell within a few leases, and every other one knows who."""
    history, loop = world.history, world.loop
    begun, number = loop.time(), 0
    while True:
        number += 1
        reply = await client.ask(f"end-{cell}-{number}", cell, ReadRecords(LIMIT))
        if reply.kind == "done":
            break
        if loop.time() - begun > 10 * world.knobs.ttl + 60:
            return history.violate(f"{cell} is served by nobody: {reply}")
        await asyncio.sleep(0.5)
    for seat in world.seats:
        await client.ask(f"end-{cell}-{seat.node}", cell, Touch(), seat.node)
    for operation in (ListBlobs(), ReadBlob("lease.json", LIMIT)):
        await client.ask(f"end-{cell}-{type(operation).__name__}", cell, operation)
    return None


def _unsettled(world: World) -> bool:
    """Whether something is still to be published."""
    if any(cell.unpublished for cell in world.history.cells.values()):
        return True
    processes = [seat.process for seat in world.seats if seat.process is not None]
    return any(process.unsettled() for process in processes)


def check_end(world: World, cells: list[str], *, quiet: bool) -> None:
    """What must hold when all faults have ended and all nodes have had time."""
    history = world.history
    for name in cells:
        cell = history.cell(name)
        if cell.unpublished:
            history.violate(f"{name}: {cell.unpublished[0][0]} was never published")
        if cell.top == 0:
            continue
        try:
            image = history.watch.image(name)
        except Damaged as fault:
            history.violate(f"{name} cannot be restored at the end: {fault}")
            continue
        if image.state() != cell.state.state:
            history.violate(f"{name} holds {image.state()} at the end, not {cell.state.state}")
        for version, _, term in cell.lost:
            _check_orphan(world, name, version, term)
        if quiet and world.knobs.idle_secs > 150:
            _check_litter(world, name)
    for seat in world.seats:
        process = seat.process
        assert process is not None
        for what in process.unsettled():
            history.violate(f"{process.name} at the end: {what}")


def _check_orphan(world: World, name: str, version: Any, term: int) -> None:
    for disk in world.disks:
        if disk.gone or disk.chains.get((name, term), {}).get(version.rev) is not version:
            continue
        for orphan in disk.path.glob(f"orphans/{name}.{term}*"):
            with closing(sqlite3.connect(orphan / "cell.db")) as held:
                (revision,) = held.execute(
                    "SELECT max((SELECT ifnull(max(rev), 0) FROM records),"
                    " (SELECT ifnull(max(rev), 0) FROM blobs),"
                    " (SELECT ifnull(max(rev), 0) FROM marks))"
                ).fetchone()
            if revision >= version.rev:
                break
        else:
            world.history.violate(
                f"{name}: {version}, overtaken on {disk.ident}, is not among its orphans"
            )


def _check_litter(world: World, name: str) -> None:
    needed = history_needs(world.history, name)
    keys = [key for key in world.bucket.objects if key.startswith(f"cells/{name}/meta/")]
    if len(keys) > len(needed) + 40:
        world.history.violate(f"{name}: {len(keys)} records, {len(needed)} of them needed")


def history_needs(history: History, name: str) -> frozenset[str]:
    return history.watch.needed(name)


@contextmanager
def _logs_to(history: History) -> Iterator[None]:
    """Log lines go to the trace; one with an unexpected error is a violation."""

    def take(_: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        name = event.pop("event")
        fault = event.pop("exc_info", None)
        history.note("log", method, name, *sorted((k, str(v)) for k, v in event.items()))
        if method == "exception" or fault:
            history.violate(f"unexpected: {traceback.format_exc()}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[take], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def sweep() -> None:
    """Free what ended runs left; cheaper now and then than all the time."""
    gc.collect()


__all__ = ["Result", "run_seed", "shutil", "os"]
