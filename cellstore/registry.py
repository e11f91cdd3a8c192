"""The registry: named JSON entries that belong to no run.

Without a bucket they are kept in a cell of the node's own. With one they are objects of the
bucket, the same for all nodes, and nothing is kept here: an entry that cannot be read there now
is not answered from memory, for another node may have changed it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Protocol

import structlog

from cellstore.conditions import digest
from cellstore.copies import Copies
from cellstore.directory import REGISTRY
from cellstore.errors import BadRequest, Unavailable
from cellstore.node import Node
from cellstore.objects import ObjectStore, Outcome, StoreFault
from cellstore.operations import Blob, Oversize, PutBlob, ReadBlob, ReadBlobs
from cellstore.records import check_entry

log = structlog.get_logger("cellstore.registry")

_PREFIX = "registry/"

# Entries read from the bucket at once.
_READS = 16

# How long a request waits for the bucket; clients give it 30 s.
_PATIENCE = 20.0

_PAUSE = 0.25


class Registry(Protocol):
    """Registry entries by name."""

    async def entries(self, limit: int) -> list[bytes] | Oversize:
        """All entries as a JSON array in chunks, sorted by name; see ReadBlobs for `limit`."""

    async def get(self, name: str, limit: int) -> Blob | Oversize | None:
        """One entry, None when there is none; see ReadBlob for `limit`."""

    async def put(self, name: str, text: bytes) -> None:
        """Write one entry. Raises DiskFull, or Unavailable."""


class LocalRegistry:
    """Entries kept on this disk; each is a blob of one cell whose key is the entry's name."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def entries(self, limit: int) -> list[bytes] | Oversize:
        """See Registry."""
        entries: list[bytes] | Oversize | None
        entries = await self._node.perform(REGISTRY, ReadBlobs(limit))
        return [b"[]"] if entries is None else entries

    async def get(self, name: str, limit: int) -> Blob | Oversize | None:
        """See Registry."""
        entry: Blob | Oversize | None = await self._node.perform(REGISTRY, ReadBlob(name, limit))
        return entry

    async def put(self, name: str, text: bytes) -> None:
        """See Registry."""
        await self._node.perform(REGISTRY, PutBlob(name, text))


class BucketRegistry:
    """Entries kept in the bucket, one object each, the same for the whole fleet.

    `conditional` says whether the store honours the tag that a write is made conditional on, so
    that a late write cannot bring an old entry back.
    """

    def __init__(self, store: ObjectStore, *, conditional: bool) -> None:
        self._store = store
        self._conditional = conditional
        self._reads = asyncio.Semaphore(_READS)

    async def entries(self, limit: int) -> list[bytes] | Oversize:
        """See Registry. One entry that is no JSON is left out and logged; it hides no other."""
        try:
            async with asyncio.timeout(_PATIENCE):
                listing = await self._store.list(_PREFIX)
                size = sum(entry.size for entry in listing.entries)
                if size > limit:
                    return Oversize(size)
                keys = sorted((entry.key for entry in listing.entries), key=_name)
                texts = await asyncio.gather(*map(self._text, keys))
        except (StoreFault, TimeoutError) as fault:
            raise _down(fault) from None
        found = [text for text in texts if text is not None]
        return [b"[", b",".join(found), b"]"]

    async def _text(self, key: str) -> bytes | None:
        async with self._reads:
            got = await self._store.get(key)
        if got is None:
            return None
        try:
            return check_entry(got.data)
        except BadRequest as fault:
            log.warning("registry entry left out", key=key, why=fault.message)
            return None

    async def get(self, name: str, limit: int) -> Blob | Oversize | None:
        """See Registry."""
        try:
            async with asyncio.timeout(_PATIENCE):
                got = await self._store.get(_key(name))
        except (StoreFault, TimeoutError) as fault:
            raise _down(fault) from None
        if got is None:
            return None
        if len(got.data) > limit:
            return Oversize(len(got.data))
        return Blob(got.data, digest(got.data))

    async def put(self, name: str, text: bytes) -> None:
        """See Registry."""
        key = _key(name)
        try:
            if not self._conditional:
                await self._store.put(key, text)
                return
            async with asyncio.timeout(_PATIENCE):
                while True:
                    there = await self._store.get(key)
                    if there is not None and there.data == text:
                        return
                    put = await self._store.replace(key, text, there and there.etag)
                    if put.outcome is Outcome.CREATED:
                        return
                    if put.outcome is Outcome.UNKNOWN:
                        await asyncio.sleep(_PAUSE)
        except StoreFault as fault:
            raise _down(fault) from None
        except TimeoutError:
            raise Unavailable(
                f"registry entry `{name}` is not confirmed; it may be written, send it again"
            ) from None

    async def add(self, name: str, text: bytes) -> bool:
        """Write an entry unless there is one; returns whether it was written. Raises StoreFault."""
        put = await self._store.create(_key(name), text)
        if put.outcome is Outcome.UNKNOWN:
            raise StoreFault(put.fault)
        return put.outcome is Outcome.CREATED


async def move_entries(copies: Copies, registry: BucketRegistry) -> None:
    """Bring the entries of a node that had no bucket into the one it was given.

    Those that are in the bucket already stay as they are there. Raises StoreFault.
    """
    if REGISTRY not in copies.terms:
        return
    cell = await copies.open(REGISTRY)
    try:
        for name, text in await cell.work(_entries):
            added = await registry.add(name, text)
            log.info("registry entry moved to the bucket", name=name, added=added)
    finally:
        await cell.close()
    await copies.offload(copies.retire, REGISTRY, copies.terms[REGISTRY], False)


def _entries(connection: sqlite3.Connection) -> list[tuple[str, bytes]]:
    rows = connection.execute("SELECT key, data FROM blobs WHERE data IS NOT NULL ORDER BY key")
    return [(key.decode(), data) for key, data in rows]


def _key(name: str) -> str:
    return f"{_PREFIX}{name}.json"


def _name(key: str) -> str:
    return key.removeprefix(_PREFIX).removesuffix(".json")


def _down(fault: Exception) -> Unavailable:
    why = str(fault) or "in time"
    return Unavailable(f"the registry is in the bucket, which does not answer: {why}")
