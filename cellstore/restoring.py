"""From the bucket to a local copy: the base, then the pieces in order, then verified."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from pathlib import Path

from cellstore import pieces
from cellstore.copies import Offload
from cellstore.database import connect_new
from cellstore.directory import DATABASE, DataDirectory, full_disk
from cellstore.epochs import Base, EpochRecord, ForeignRecord, Piece, decode, piece_key
from cellstore.errors import CellBroken
from cellstore.faults import translate
from cellstore.objects import ObjectStore
from cellstore.together import together

# Pieces are fetched this many at a time, ahead of their turn.
_AHEAD = 8

# Restores at once; each needs room on the disk for what it unpacks.
_RESTORES = 16


class Gone(Exception):
    """An object that a record lists is not there: there should be a newer record."""


class Restorer:
    """Makes local copies of what is in the bucket."""

    def __init__(self, directory: DataDirectory, store: ObjectStore, offload: Offload) -> None:
        self._directory = directory
        self._store = store
        self._offload = offload
        self._slots = asyncio.Semaphore(_RESTORES)

    async def restore(self, record: EpochRecord) -> Path:
        """Restore the state of `record` into a new staged copy, closed and verified.

        Raises Gone, StoreFault, DiskFull, and CellBroken for what does not hold together.
        """
        async with self._slots:
            staging: Path = await self._offload(self._directory.stage)
            try:
                await self._fill(record, staging)
            except BaseException as error:
                await self._offload(self._directory.discard, staging)
                if isinstance(error, sqlite3.Error):
                    shortage = self._directory.shortage
                    raise await self._offload(translate, error, record.cell, shortage) from None
                raise
            return staging

    async def _fill(self, record: EpochRecord, staging: Path) -> None:
        database = staging / DATABASE
        if record.base is None:
            await self._offload(pieces.new_copy, database)
        else:
            packed = await self._fetch(record.base, record.base.key, staging / "base.zst")
            await self._offload(_unpack, packed, database)
        for first in range(0, len(record.pieces), _AHEAD):
            some = record.pieces[first : first + _AHEAD]
            files = await together(
                *(self._piece(record, piece, staging / f"{n}.zst") for n, piece in enumerate(some))
            )
            await self._offload(_apply, database, files)
        await self._offload(pieces.verify, database, record.rev)

    async def _piece(self, record: EpochRecord, piece: Piece, path: Path) -> Path:
        if piece.key is not None:
            return await self._fetch(piece, piece.key, path)
        assert piece.epoch is not None
        if piece.epoch == record.epoch and record.delta is not None:
            delta: bytes | None = record.delta
        else:
            key = piece_key(record.cell, piece)
            got = await self._store.get(key)
            if got is None:
                raise Gone(key)
            try:
                delta = decode(got.data, record.cell, piece.epoch).delta
            except ForeignRecord as fault:
                raise CellBroken(str(fault)) from None
        if delta is None or hashlib.sha256(delta).hexdigest() != piece.sha256:
            raise CellBroken(f"epoch {piece.epoch} does not hold the changes listed for it")
        await self._offload(_write, path, delta)
        return path

    async def _fetch(self, listed: Base | Piece, key: str, path: Path) -> Path:
        with full_disk(f"restoring {path.parent}"):
            if not await self._store.fetch(key, path):
                raise Gone(key)
        found = await self._offload(_digest, path)
        if found != listed.sha256:
            raise CellBroken(f"{key} is damaged: its SHA-256 is {found}")
        return path


def _apply(database: Path, files: list[Path]) -> None:
    with full_disk(f"restoring {database.parent}"):
        connection = connect_new(database)
        try:
            for packed in files:
                piece = packed.with_suffix(".db")
                _unpack(packed, piece)
                pieces.apply_piece(connection, piece)
                piece.unlink()
        finally:
            connection.close()


def _unpack(packed: Path, path: Path) -> None:
    with full_disk(f"restoring {path.parent}"):
        pieces.unpack(packed, path)
        packed.unlink()


def _write(path: Path, data: bytes) -> None:
    with full_disk(f"restoring {path.parent}"):
        path.write_bytes(data)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
