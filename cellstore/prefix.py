"""Joining a bucket's prefix: whose it is, and taking over one that the reference server wrote."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from cellstore import schema
from cellstore.clock import Clock, iso
from cellstore.copies import Offload
from cellstore.database import connect_immutable, connect_new
from cellstore.directory import DATABASE, DataDirectory
from cellstore.epochlog import EpochLog, Lost
from cellstore.epochs import (
    CELLS,
    PLACEHOLDER,
    EpochRecord,
    ForeignRecord,
    decode,
    epoch_of,
    meta_prefix,
)
from cellstore.errors import CellBroken, StartRefused
from cellstore.objects import Listing, ObjectStore, Outcome, StoreFault
from cellstore.ownership import Identity
from cellstore.schema import Counters
from cellstore.shipping import Shipper
from cellstore.together import together

log = structlog.get_logger("cellstore.prefix")

IDENTITY = "cellstore.json"
FORMAT = 1

_TRIES = 10

# Cells adopted at once.
_AT_ONCE = 8


async def join(
    store: ObjectStore, directory: DataDirectory, fresh: str, adopt: Callable[[], Any] | None
) -> str:
    """Find out whose prefix this is and bind the directory to it; returns the prefix's id.

    A prefix that nobody uses becomes ours. One with cells but without an identity belongs to the
    reference server: `adopt` takes it over, and without it the start is refused. In a prefix of
    ours `adopt` takes over what the reference server made there by mistake. Raises StartRefused
    and StoreFault.
    """
    known = directory.prefix()
    found = await _identity(store)
    if found is None:
        if known is not None:
            raise StartRefused(
                f"--data-dir {directory.root} belongs to a prefix of a bucket whose {IDENTITY} is "
                "gone from there; restore it, or give the prefix that this node had"
            )
        if await store.folders(CELLS):
            if adopt is None:
                raise StartRefused(
                    f"the bucket's prefix holds cells but no {IDENTITY}: another kind of server "
                    "wrote it. Stop all of its nodes, then start one node with --adopt"
                )
            await adopt()
        found = await _create(store, fresh)
    elif known not in (None, found):
        raise StartRefused(
            f"--data-dir {directory.root} belongs to another prefix ({known}) than the one given "
            f"({found}); give the bucket that this node had, or a data directory of its own"
        )
    elif adopt is not None:
        # Cells that the reference server made here, started on a prefix of ours by mistake.
        await adopt()
    if known is None:
        directory.bind(found)
    return found


async def _identity(store: ObjectStore) -> str | None:
    got = await store.get(IDENTITY)
    if got is None:
        return None
    try:
        told = json.loads(got.data)
        written, name = int(told["format"]), str(told["id"])
    except (ValueError, KeyError, TypeError):
        raise StartRefused(f"{IDENTITY} in the bucket is not what this server writes") from None
    if written != FORMAT:
        raise StartRefused(
            f"the bucket's prefix has format {written} and this version knows {FORMAT}; "
            "run the version that wrote it, or a later one"
        )
    return name


async def _create(store: ObjectStore, fresh: str) -> str:
    data = json.dumps({"format": FORMAT, "id": fresh}).encode()
    for _ in range(_TRIES):
        put = await store.create(IDENTITY, data)
        if put.outcome is Outcome.CREATED:
            return fresh
        # Another node may have been first, or our answer was lost: what is there counts.
        found = await _identity(store)
        if found is not None:
            return found
    raise StartRefused(f"{IDENTITY} cannot be written to the bucket: {put.fault}")


class Adoption:
    """Turns what the reference server left into cells of ours, several at once.

    A cell whose state is ours already is left alone, so an adoption that was broken off
    goes on where it stopped.
    """

    def __init__(
        self,
        store: ObjectStore,
        directory: DataDirectory,
        shipper: Shipper,
        offload: Offload,
        clock: Clock,
        me: Identity,
        fresh: Callable[[], str],
    ) -> None:
        self._store = store
        self._directory = directory
        self._shipper = shipper
        self._offload = offload
        self._clock = clock
        self._me = me
        self._fresh = fresh

    async def run(self) -> int:
        """Adopt all cells. Returns how many. Raises StartRefused naming the cell that cannot be."""
        ours = await _identity(self._store) is not None
        slots = asyncio.Semaphore(_AT_ONCE)

        async def adopt(cell: str) -> bool:
            async with slots:
                return await self._adopt(cell, ours)

        cells = await self._store.folders(CELLS)
        adopted = sum(await together(*map(adopt, cells))) if cells else 0
        log.info("prefix adopted", cells=adopted)
        return adopted

    async def _adopt(self, cell: str, ours: bool) -> bool:
        """Adopt a cell if it is to be. `ours` says that the prefix is."""
        listing = await self._store.list(meta_prefix(cell))
        try:
            epoch, foreign = await self._newest(cell, listing)
        except CellBroken as fault:
            if not ours:
                raise StartRefused(fault.message) from None
            # Requests for it will say so, and other cells do not suffer.
            log.warning("cell not adopted", cell=cell, why=fault.message)
            return False
        if foreign is None:
            return False
        _refuse_live(cell, foreign, listing.date)
        staging = await self._offload(self._directory.stage)
        try:
            await self._convert(cell, foreign, staging)
            wall = self._clock.reading().wall
            record = EpochRecord(
                cell=cell,
                epoch=epoch + 1,
                owner=self._me.node,
                advertise=self._me.advertise,
                lease_expires_at=iso(wall),
                updated_at=iso(wall),
                ttl=self._me.ttl,
                term=epoch + 1,
                nonce=self._fresh(),
                disk=self._me.disk,
                boot=self._me.boot,
                rev=0,
                base=None,
                pieces=(),
                released=True,
            )
            record = await self._shipper.found(cell, staging / DATABASE, record)
        finally:
            await self._offload(self._directory.discard, staging)
        outcome = await EpochLog(cell, self._store, self._clock).append(record, None)
        if isinstance(outcome, Lost) and outcome.seen.record is None:
            raise StartRefused(f"cell `{cell}` changed while it was adopted; stop all other nodes")
        log.info("cell adopted", cell=cell, epoch=record.epoch)
        return True

    async def _newest(self, cell: str, listing: Listing) -> tuple[int, dict[str, Any] | None]:
        """The highest epoch, and the record to adopt: None where ours is the state of the cell.

        Raises CellBroken.
        """
        epochs = sorted((epoch_of(entry.key) or 0, entry.key) for entry in listing.entries)
        epochs = [(epoch, key) for epoch, key in reversed(epochs) if epoch > 0]
        if not epochs:
            raise CellBroken(
                f"cell `{cell}` in the bucket has objects but no record that says which is valid; "
                f"restore its record, or move {CELLS}{cell}/ away"
            )
        newest: dict[str, Any] | None = None
        for epoch, key in epochs:
            got = await self._store.get(key)
            if got is None:
                raise StoreFault(f"{key} was listed and is gone; other nodes must be stopped")
            try:
                decode(got.data, cell, epoch)
            except ForeignRecord:
                foreign = json.loads(got.data)
            except CellBroken as fault:
                raise CellBroken(f"cell `{cell}`: {fault.message}") from None
            else:
                return epochs[0][0], None
            newest = newest or foreign
            if not str(foreign.get("snapshot")).endswith(PLACEHOLDER):
                break
            # It was put over a record of ours, whose state its writer cannot have.
        return epochs[0][0], newest

    async def _convert(self, cell: str, foreign: dict[str, Any], staging: Path) -> None:
        """Make a database of ours from the snapshot that a record of the reference names."""
        snapshot = foreign.get("snapshot")
        theirs = staging / "theirs.db"
        if snapshot is None:
            await self._need_nothing(cell)
        elif not await self._store.fetch(_below_prefix(cell, str(snapshot)), theirs):
            raise StartRefused(
                f"cell `{cell}`: its record names {snapshot}, which is not in the bucket. "
                f"There are: {await self._state_objects(cell) or 'none'}. Choose one, put its "
                "key into the record, and start again"
            )
        try:
            await self._offload(_copy_rows, theirs if snapshot else None, staging / DATABASE)
        except sqlite3.Error as fault:
            raise StartRefused(
                f"cell `{cell}`: {snapshot} cannot be read as the reference's database: {fault}"
            ) from None

    async def _need_nothing(self, cell: str) -> None:
        """A record without a snapshot is an empty cell, unless there is state that it forgot."""
        if there := await self._state_objects(cell):
            raise StartRefused(
                f"cell `{cell}`: its record names no snapshot, but there are: {there}. Choose "
                "one, put its key into the record, and start again"
            )

    async def _state_objects(self, cell: str) -> str:
        listing = await self._store.list(f"{CELLS}{cell}/state/")
        return ", ".join(entry.key for entry in listing.entries)


def _below_prefix(cell: str, snapshot: str) -> str:
    """A key as the reference writes it, from the top of the bucket, as ours are."""
    return snapshot[max(0, snapshot.rfind(f"{CELLS}{cell}/")) :]


def _refuse_live(cell: str, foreign: dict[str, Any], date: float | None) -> None:
    try:
        expires = datetime.fromisoformat(str(foreign["lease_expires_at"])).timestamp()
    except (KeyError, ValueError):
        return
    if date is not None and date < expires:
        raise StartRefused(
            f"cell `{cell}` is leased by node `{foreign.get('owner')}` until "
            f"{foreign['lease_expires_at']}; stop all nodes of the reference server and start "
            "again after that"
        )


def _copy_rows(theirs: Path | None, ours: Path) -> None:
    """Fill an empty database with the reference's rows, all of revision 1."""
    target = connect_new(ours)
    try:
        schema.create(target)
        counters = Counters()
        if theirs is not None:
            source = connect_immutable(theirs)
            try:
                target.execute("BEGIN")
                records = source.execute("SELECT seq, pos, data FROM records ORDER BY pos, seq")
                target.executemany(
                    "INSERT INTO records (seq, pos, rev, data) VALUES (?, ?, 1, CAST(? AS TEXT))",
                    ((seq, pos, data) for pos, (seq, _, data) in enumerate(records)),
                )
                target.executemany(
                    "INSERT INTO blobs (key, rev, data) VALUES (CAST(? AS TEXT), 1, ?)",
                    source.execute("SELECT key, data FROM blobs"),
                )
                target.execute("COMMIT")
            finally:
                source.close()
            counters = schema.load(target)
        schema.save(target, counters)
    finally:
        target.close()
