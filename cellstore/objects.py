"""What is asked of an object store, and the three outcomes of a create that must be the only one.

Times are the store's own, in seconds since 1970, None where it tells none. Nothing here decides:
a create whose outcome is unknown may still land minutes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol


class StoreFault(Exception):
    """A call failed, or its outcome is not known. Says the operation, the key and the reason."""


class Outcome(Enum):
    """How a conditional put ended."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


class Put(NamedTuple):
    """The answer to a conditional put: its outcome, when the store answered, why it failed.

    `etag` is the store's tag of what was written, where it was.
    """

    outcome: Outcome
    date: float | None = None
    fault: str = ""
    etag: str = ""


class Got(NamedTuple):
    """An object's bytes, when the store answered, and the store's tag of the object."""

    data: bytes
    date: float | None
    etag: str


class Listed(NamedTuple):
    """One listed object: its key, when it was last written, its size in bytes."""

    key: str
    modified: float
    size: int


class Listing(NamedTuple):
    """Objects in the order of their keys, and when the store answered with the last of them."""

    entries: list[Listed]
    date: float | None


class ObjectStore(Protocol):
    """A bucket, below its prefix. Every call ends within a deadline of its own.

    All but the conditional puts raise StoreFault when they fail or do not know.
    """

    async def create(self, key: str, data: bytes) -> Put:
        """Write an object that must not be there yet. Sent once; never raises StoreFault."""

    async def replace(self, key: str, data: bytes, etag: str | None) -> Put:
        """Write an object that must still have this tag, or (None) must not be there.

        EXISTS where it has another tag or is gone. Never raises StoreFault.
        """

    async def put(self, key: str, data: bytes | Path) -> None:
        """Write an object, from memory or from a file, whatever is there."""

    async def get(self, key: str) -> Got | None:
        """Read an object; None when the store says that there is none."""

    async def fetch(self, key: str, path: Path) -> bool:
        """Read an object into a new file; False when the store says that there is none."""

    async def list(self, prefix: str, after: str = "") -> Listing:
        """All objects whose keys start with `prefix` and come after the key `after`."""

    async def folders(self, prefix: str) -> Sequence[str]:
        """The distinct names between `prefix` and the next `/`, sorted."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there count as deleted."""
