"""Makes the parts of a node and joins them: alone on its disk, or with a bucket."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from cellstore import __version__
from cellstore.alone import Alone
from cellstore.api import Api
from cellstore.auth import Tokens
from cellstore.clock import Clock, SystemClock, fresh_id
from cellstore.copies import Copies, Offload
from cellstore.database import ThreadedDatabase
from cellstore.directory import REGISTRY, DataDirectory
from cellstore.errors import CellstoreError, StartRefused
from cellstore.fleet import Fleet
from cellstore.identity import boot_id, disk_id, known_boots
from cellstore.index import RunIndex
from cellstore.memory import MemoryBudget
from cellstore.node import Node
from cellstore.objects import ObjectStore, StoreFault
from cellstore.ownership import Identity
from cellstore.prefix import Adoption, join
from cellstore.probe import Probed, probe
from cellstore.registry import BucketRegistry, LocalRegistry, Registry, move_entries
from cellstore.s3config import from_environment
from cellstore.settings import MIB, Settings
from cellstore.shipping import Shipper

log = structlog.get_logger("cellstore.app")

# How long a request waits for memory before it is told to come again; clients give it 30 s.
_MEMORY_WAIT = 20.0

# How long closing all cells may take at a stop. What was committed is safe without it.
_CLOSE_SECS = 30.0

# How long a stop may take to publish and release what this node owns.
_DRAIN_SECS = 25.0


@dataclass(frozen=True, slots=True)
class Parts:
    """A node that is ready to serve. `stopping` is to be called when it is told to stop."""

    node: Node
    api: Api
    runs: RunIndex
    stopping: Callable[[], None]


@contextlib.asynccontextmanager
async def make_parts(
    settings: Settings,
    directory: DataDirectory,
    node_id: str,
    tokens: Tokens,
    offload: Offload,
) -> AsyncIterator[Parts]:
    """The parts of a node on a locked directory. At the end its cells are closed.

    Raises StartRefused when the directory or the bucket is at fault, and TimeoutError when cells
    could not be closed in time.
    """
    clock = SystemClock()
    copies = Copies(directory, ThreadedDatabase.open, offload)
    await offload(copies.scan)
    runs = RunIndex()
    runs.merge(copies.terms.keys() - {REGISTRY})

    def node_of(opener: Any) -> Node:
        return Node(
            opener, clock, idle_secs=settings.idle_secs, max_open_cells=settings.max_open_cells
        )

    def api_of(node: Node, registry: Registry) -> Api:
        return Api(
            node,
            runs,
            registry,
            tokens,
            MemoryBudget(settings.max_memory_mib * MIB, _MEMORY_WAIT),
            max_body=settings.max_body_mib * MIB,
            node_id=node_id,
            version=__version__,
            bucket=settings.bucket is not None,
            orphans=lambda: [orphan.name for orphan in directory.orphans()],
        )

    if settings.bucket is None:
        if directory.prefix() is not None:
            raise StartRefused(
                f"--data-dir {directory.root} belongs to a node with a bucket, where newer states "
                "of its cells may be; give --bucket"
            )
        node = node_of(Alone(copies, runs.add))
        try:
            yield Parts(node, api_of(node, LocalRegistry(node)), runs, lambda: None)
        finally:
            async with asyncio.timeout(_CLOSE_SECS):
                await node.close()
        return
    boot = boot_id(directory)
    me = Identity(
        node_id,
        settings.advertise,
        await offload(disk_id, directory, fresh_id()),
        boot,
        settings.lease_secs,
        await offload(known_boots, directory, boot),
    )
    # Loading the SDK takes longer than starting a node that needs none.
    from cellstore.s3 import S3Store  # noqa: PLC0415

    config = from_environment(settings.bucket, os.environ)
    async with S3Store.open(config) as store:
        probed = await _join(settings, directory, store, offload, clock, me)
        fleet = Fleet(
            copies,
            store,
            clock,
            fresh_id,
            me,
            runs,
            sync_secs=settings.sync_secs,
            ack_bucket=settings.ack == "bucket",
            max_lag_secs=settings.lag_allowed,
            max_disk=None if settings.max_disk_mib is None else settings.max_disk_mib * MIB,
            alarm=_leave_at_once,
        )
        node = node_of(fleet.claims)
        fleet.attach(node)
        registry = BucketRegistry(store, conditional=probed.conditional_replace)
        try:
            await move_entries(copies, registry)
            await fleet.start()
        except StoreFault as fault:
            raise StartRefused(f"--bucket {settings.bucket}: {fault}") from None
        going = asyncio.create_task(fleet.run())
        try:
            yield Parts(node, api_of(node, registry), runs, fleet.claims.drain)
        finally:
            await _stop(fleet, node)
            going.cancel()
            await asyncio.wait([going])


async def _join(
    settings: Settings,
    directory: DataDirectory,
    store: ObjectStore,
    offload: Offload,
    clock: Clock,
    me: Identity,
) -> Probed:
    """Check that the bucket can be trusted, and that this directory belongs to it."""

    async def adopt() -> None:
        shipper = Shipper(directory, store, offload, fresh_id)
        await Adoption(store, directory, shipper, offload, clock, me, fresh_id).run()

    probed = await probe(store, clock.monotonic, fresh_id, settings.lease_secs)
    if not probed.dated:
        log.warning("the bucket's answers have no dates: takeovers wait until a lease was watched")
    try:
        await join(store, directory, fresh_id(), adopt if settings.adopt else None)
    except (StoreFault, CellstoreError) as fault:
        raise StartRefused(f"--bucket {settings.bucket}: {fault}") from None
    return probed


async def _stop(fleet: Fleet, node: Node) -> None:
    """Publish and release what this node owns, and close it all."""
    fleet.claims.drain()
    try:
        async with asyncio.timeout(_DRAIN_SECS):
            await node.close()
    except TimeoutError:
        left = fleet.unpublished()
        log.error(  # noqa: TRY400
            "not all was published; the next start on this data directory goes on with it",
            cells=len(left),
            names=left[:20],
        )
        await fleet.replicator.stop()
        node.break_off()
        async with asyncio.timeout(_CLOSE_SECS - _DRAIN_SECS):
            await node.close()


def _leave_at_once(reason: str) -> None:
    """End the process without touching the data directory, which another one uses."""
    log.critical("stopping at once", reason=reason)
    os._exit(70)
