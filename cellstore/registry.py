"""The registry: named JSON entries that belong to no run, kept in a cell of the node's own."""

from __future__ import annotations

from cellstore.directory import REGISTRY
from cellstore.node import Node
from cellstore.operations import Blob, Oversize, PutBlob, ReadBlob, ReadBlobs


class Registry:
    """Registry entries; each is a blob of one cell whose key is the entry's name."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def entries(self, limit: int) -> list[bytes] | Oversize:
        """All entries as a JSON array in chunks, sorted by name; see ReadBlobs for `limit`."""
        entries: list[bytes] | Oversize | None
        entries = await self._node.perform(REGISTRY, ReadBlobs(limit))
        return [b"[]"] if entries is None else entries

    async def get(self, name: str, limit: int) -> Blob | Oversize | None:
        """One entry, None when there is none; see ReadBlob for `limit`."""
        entry: Blob | Oversize | None = await self._node.perform(REGISTRY, ReadBlob(name, limit))
        return entry

    async def put(self, name: str, text: bytes) -> None:
        """Write one entry. Raises DiskFull."""
        await self._node.perform(REGISTRY, PutBlob(name, text))
