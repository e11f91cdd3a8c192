"""A prefix of a bucket: what nodes must be told to use it, and what lies in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cellstore.objects import ObjectStore
from tests.support.stores import s3_opener
from tests.support.versitygw import Versitygw

# Short, so that a takeover is not waited for.
LEASE_SECS = 3


class Prefix:
    """Looked into on the gateway's disk, and changed through the gateway."""

    def __init__(self, gateway: Versitygw, name: str) -> None:
        url = f"{gateway.url}/{name}"
        self.options = ["--bucket", url, "--lease-secs", str(LEASE_SECS)]
        self.environment = gateway.environment()
        self._open = s3_opener(gateway)
        self._name = name
        self._root = gateway.directory / gateway.bucket / name

    def there(self, pattern: str) -> list[str]:
        """The keys of the objects that a pattern of paths finds."""
        return sorted(
            path.relative_to(self._root).as_posix()
            for path in self._root.glob(pattern)
            if path.is_file()
        )

    def record(self, key: str) -> dict[str, Any]:
        """A record of a cell, as it lies there."""
        record: dict[str, Any] = json.loads(self.read(key))
        return record

    def read(self, key: str) -> bytes:
        return self.path(key).read_bytes()

    def path(self, key: str) -> Path:
        return self._root / key

    def put(self, key: str, data: bytes) -> None:
        self._do(lambda store: store.put(key, data))

    def delete(self, key: str) -> None:
        self._do(lambda store: store.delete([key]))

    def _do(self, work: Callable[[ObjectStore], Awaitable[None]]) -> None:
        async def do() -> None:
            async with self._open(self._name) as store:
                await work(store)

        asyncio.run(do())
