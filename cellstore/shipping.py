"""From a cell to the bucket: what changed is read, packed and, where it is large, uploaded.

Reading takes the cell's own thread only for an instant: a few rows are taken there, more are read
by a connection of their own on a snapshot of that instant. All bytes are packed before an upload
starts, so a slow bucket holds no transaction open.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cellstore import lineage, pieces, schema
from cellstore.cell import Cell
from cellstore.copies import Offload
from cellstore.directory import DATABASE, DataDirectory, full_disk
from cellstore.epochs import MAX_DELTA, Base, EpochRecord, Piece, state_key
from cellstore.faults import translate
from cellstore.objects import ObjectStore
from cellstore.pieces import Packed

# Changes up to this many bytes are packed on the cell's own thread too: handing them to another
# would take longer.
_TINY = 32 * 1024

# Changes up to this many bytes are read as rows on the cell's own connection.
_FEW = 256 * 1024

_FROM_NOTHING: Final = lineage.Ship(start=0, kept=(), uploads=1)

# Large uploads at once; small records never wait for them.
_UPLOADS = 4


@dataclass(frozen=True, slots=True)
class Shipment:
    """What a record is to carry: everything after `plan`'s start, up to revision `end`.

    `delta` holds the bytes where they are few; else they lie under `key`.
    """

    plan: lineage.Ship | lineage.Fold
    end: int
    packed: Packed
    delta: bytes | None
    key: str | None

    @property
    def folded(self) -> bool:
        return isinstance(self.plan, lineage.Fold)

    @property
    def keys(self) -> tuple[str, ...]:
        """The objects that it was uploaded as."""
        return () if self.key is None else (self.key,)

    def extend(self, record: EpochRecord) -> EpochRecord:
        """`record`, which follows the one that the shipment was planned on, with it."""
        size, sha256 = self.packed
        if isinstance(self.plan, lineage.Fold):
            assert self.key is not None
            return replace(
                record, rev=self.end, base=Base(self.key, sha256, size, self.end), pieces=()
            )
        epoch = record.epoch if self.key is None else None
        piece = Piece(epoch, self.key, self.plan.start, self.end, size, sha256, self.plan.uploads)
        return replace(record, rev=self.end, pieces=(*self.plan.kept, piece), delta=self.delta)


@dataclass(frozen=True, slots=True)
class _Extract:
    plan: lineage.Ship | lineage.Fold
    where: tuple[int, int]
    source: bytes | pieces.Rows | sqlite3.Connection


class Shipper:
    """Makes shipments of cells."""

    def __init__(
        self,
        directory: DataDirectory,
        store: ObjectStore,
        offload: Offload,
        fresh: Callable[[], str],
    ) -> None:
        self._directory = directory
        self._store = store
        self._offload = offload
        self._fresh = fresh
        self._uploads = asyncio.Semaphore(_UPLOADS)
        self._strays: dict[str, set[str]] = {}
        self._uploading = 0

    def uploading(self) -> int:
        """How many cells upload, or wait to upload, something that fits in no record."""
        return self._uploading

    def strays(self, cell: str) -> frozenset[str]:
        """The uploads of a cell that failed since this was last asked; they may be there."""
        return frozenset(self._strays.pop(cell, ()))

    async def prepare(self, cell: Cell, record: EpochRecord) -> Shipment | None:
        """Pack and upload what `record`, the newest, does not cover; None if it covers all.

        Raises StoreFault when the upload failed, DiskFull when there is no room to pack it, and
        CellBroken when the cell cannot be read.
        """
        try:
            with full_disk(f"packing cell `{cell.name}`"):
                return await self._prepare(cell, record)
        except sqlite3.Error as error:
            shortage = self._directory.shortage
            raise await self._offload(translate, error, cell.name, shortage) from None

    async def _prepare(self, cell: Cell, record: EpochRecord) -> Shipment | None:
        path = self._directory.copy(cell.name, record.term) / DATABASE
        spool = self._directory.scratch()

        def extract(connection: sqlite3.Connection) -> _Extract | None:
            return _extract(connection, cell, record, path, spool)

        extracted = await cell.work(extract)
        if extracted is None:
            return None
        source = extracted.source
        if isinstance(source, pieces.Rows):
            source = await self._offload(pieces.build_small, source, extracted.where)
        if isinstance(source, bytes):
            delta = source
            if len(delta) <= MAX_DELTA:
                packed = Packed(len(delta), hashlib.sha256(delta).hexdigest())
                return Shipment(extracted.plan, extracted.where[0], packed, delta, None)
            return await self._upload(cell.name, extracted.plan, extracted.where[0], delta)
        start = extracted.plan.start if isinstance(extracted.plan, lineage.Ship) else 0
        try:
            packed_path, packed = await self._offload(
                _finish, source, spool, start, extracted.where
            )
            return await self._ship_file(
                cell.name, extracted.plan, extracted.where[0], packed_path, packed
            )
        finally:
            await self._offload(_remove, spool)

    async def found(self, cell: str, path: Path, record: EpochRecord) -> EpochRecord:
        """`record`, the first of a cell, with all that a database at `path` holds.

        Nobody may write to that meanwhile. Raises what `prepare` does.
        """
        small = await self._offload(_pack_few, path)
        if small is not None:
            end, delta = small
            packed = Packed(len(delta), hashlib.sha256(delta).hexdigest())
            return Shipment(_FROM_NOTHING, end, packed, delta, None).extend(record)
        spool = self._directory.scratch()
        try:
            where, packed_path, packed = await self._offload(_pack_all, path, spool)
            if where[0] == 0:
                return record
            plan: lineage.Ship | lineage.Fold = _FROM_NOTHING
            if packed.size > MAX_DELTA:
                plan = lineage.Fold()
            shipment = await self._ship_file(cell, plan, where[0], packed_path, packed)
            return shipment.extend(record)
        finally:
            await self._offload(_remove, spool)

    async def settled_base(self, cell: Cell, rev: int) -> None:
        """Forget what a settled base of revision `rev` has made superfluous."""

        def forget(connection: sqlite3.Connection) -> None:
            pieces.prune(connection, rev)
            cell.counters.changes.trim(rev)

        await cell.work(forget)

    async def _ship_file(
        self,
        cell: str,
        plan: lineage.Ship | lineage.Fold,
        end: int,
        path: Path,
        packed: Packed,
    ) -> Shipment:
        if packed.size <= MAX_DELTA and isinstance(plan, lineage.Ship):
            delta = await self._offload(path.read_bytes)
            return Shipment(plan, end, packed, delta, None)
        return await self._upload(cell, plan, end, path, packed)

    async def _upload(
        self,
        cell: str,
        plan: lineage.Ship | lineage.Fold,
        end: int,
        data: bytes | Path,
        packed: Packed | None = None,
    ) -> Shipment:
        if packed is None:
            assert isinstance(data, bytes)
            packed = Packed(len(data), hashlib.sha256(data).hexdigest())
        kind = "db" if isinstance(plan, lineage.Fold) else "seg"
        key = state_key(cell, kind, end, self._fresh(), packed.sha256)
        self._uploading += 1
        try:
            async with self._uploads:
                await self._store.put(key, data)
        except BaseException:
            # It may be there all the same, or come later.
            self._strays.setdefault(cell, set()).add(key)
            raise
        finally:
            self._uploading -= 1
        return Shipment(plan, end, packed, None, key)


def _extract(
    connection: sqlite3.Connection, cell: Cell, record: EpochRecord, path: Path, spool: Path
) -> _Extract | None:
    counters = cell.counters
    if counters.revision == record.rev:
        return None
    where = (counters.revision, counters.position)
    size = schema.file_size(connection)
    changed = counters.changes.above(record.rev)
    plan = lineage.plan(
        record.base,
        record.pieces,
        counters.revision,
        # A scan, once after the cell was opened with changes that are not in the bucket.
        pieces.measure(connection, record.rev) if changed is None else changed.size,
        size,
    )
    if isinstance(plan, lineage.Ship):
        changed = counters.changes.above(plan.start)
        if changed is not None and changed.size <= _FEW:
            rows = pieces.read_changes(connection, changed, plan.start)
            if changed.size <= _TINY:
                return _Extract(plan, where, pieces.build_small(rows, where))
            return _Extract(plan, where, rows)
    return _Extract(plan, where, pieces.begin_scan(path, spool))


def _finish(
    source: sqlite3.Connection, spool: Path, start: int, where: tuple[int, int]
) -> tuple[Path, Packed]:
    pieces.finish_scan(source, start, where)
    packed_path = _packed_path(spool)
    return packed_path, pieces.pack(spool, packed_path)


def _pack_all(path: Path, spool: Path) -> tuple[tuple[int, int], Path, Packed]:
    source = pieces.begin_scan(path, spool)
    counters = schema.load(source)
    where = (counters.revision, counters.position)
    packed_path, packed = _finish(source, spool, 0, where)
    return where, packed_path, packed


def _pack_few(path: Path) -> tuple[int, bytes] | None:
    """Revision and packed content of a small database; None of one that is large, or empty."""
    if path.stat().st_size > _FEW:
        return None
    connection = pieces.connect_beside(path, "rw")
    try:
        counters = schema.load(connection)
        if counters.revision == 0:
            return None
        rows = pieces.read_all(connection)
    finally:
        connection.close()
    delta = pieces.build_small(rows, (counters.revision, counters.position))
    return (counters.revision, delta) if len(delta) <= MAX_DELTA else None


def _packed_path(spool: Path) -> Path:
    return spool.with_name(spool.name + ".zst")


def _remove(spool: Path) -> None:
    for path in (spool, _packed_path(spool)):
        path.unlink(missing_ok=True)
