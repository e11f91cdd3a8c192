"""The quiet end of a run: all faults are over, and what was promised is checked."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

from cellstore.operations import ListBlobs, ReadBlob, ReadRecords, Touch
from tests.simulation.clients import LIMIT, Client
from tests.simulation.stored import Damaged
from tests.simulation.versions import Version
from tests.simulation.world import World

# So many records may lie there besides those that are needed: they are collected a while later.
_UNCOLLECTED = 40


async def come_to_rest(world: World, client: Client, cells: list[str], *, quiet: bool) -> None:
    """End all faults, and see that every cell is served and all is published."""
    history, loop = world.history, world.loop
    history.note("heal")
    world.healing = True
    for seat in world.seats:
        world.calm(seat)
    for disk in world.disks:
        disk.full = False
    for process in world.processes:
        process.life.fuse = process.file_fuse = process.write_fuse = None
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
    for _ in range(round(20 * world.knobs.ttl + 120)):
        if not _unsettled(world):
            break
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


def _check_orphan(world: World, name: str, version: Version, term: int) -> None:
    for disk in world.disks:
        if disk.gone or disk.chains.get((name, term), {}).get(version.rev) is not version:
            continue
        for orphan in disk.path.glob("orphans/*"):
            if orphan.name.split(".")[:2] != [name, str(term)]:
                continue
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
    needed = world.history.watch.needed(name)
    keys = [key for key in world.bucket.objects if key.startswith(f"cells/{name}/meta/")]
    if len(keys) > len(needed) + _UNCOLLECTED:
        world.history.violate(f"{name}: {len(keys)} records, {len(needed)} of them needed")
