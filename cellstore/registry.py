"""The registry: named JSON entries that belong to no run, kept in a cell of the node's own."""

from __future__ import annotations

import asyncio

from cellstore import schema
from cellstore.cell import Cell
from cellstore.database import OpenDatabase
from cellstore.directory import DataDirectory
from cellstore.errors import CellBroken, StartRefused
from cellstore.operations import Blob, PutBlob, ReadBlob, ReadBlobs

NAME = "registry"


class Registry:
    """Registry entries; each is a blob of one cell whose key is the entry's name."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @classmethod
    async def open(cls, directory: DataDirectory, open_database: OpenDatabase) -> Registry:
        """Open the registry, making it where there is none. Raises StartRefused if it is broken."""
        path = await asyncio.to_thread(directory.registry)
        database = await open_database(path)
        try:
            await database.run(schema.create_if_empty)
            return cls(await Cell.open(NAME, database, directory.is_full))
        except CellBroken as fault:
            await database.close()
            raise StartRefused(f"the registry {path} cannot be read: {fault}") from None

    async def entries(self) -> list[bytes]:
        """The JSON texts of all entries, sorted by name."""
        entries: list[bytes] = await self._cell.perform(ReadBlobs())
        return entries

    async def get(self, name: str) -> bytes | None:
        """The JSON text of one entry, None when there is none."""
        entry: Blob | None = await self._cell.perform(ReadBlob(name, limit=2**63))
        return None if entry is None else entry.data

    async def put(self, name: str, text: bytes) -> None:
        """Write one entry. Raises DiskFull."""
        await self._cell.perform(PutBlob(name, text))

    async def close(self) -> None:
        await self._cell.close()
