"""Both clients of a run store behind one face, so that a test is written once for the two."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Self

from cellstore.client import AsyncClient, AsyncLease, Client, Lease

KINDS = ["blocking", "asynchronous"]


class Either:
    """A client of either kind; the blocking one is used in a thread."""

    def __init__(self, kind: str, url: str, token: str | None = None, **options: Any) -> None:
        maker = Client if kind == "blocking" else AsyncClient
        self.client: Client | AsyncClient = maker(url, token, **options)

    async def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call the method of that name."""
        return await _call(self.client, name, *arguments, **options)

    async def stream(self, run: str, limit: int | None = None) -> list[Any]:
        """The records that the stream gives, up to `limit` of them."""
        found: list[Any] = []
        if isinstance(self.client, Client):
            return await asyncio.to_thread(_stream, self.client, run, limit, found)
        async with aclosing(self.client.stream_records(run)) as records:
            async for record in records:
                found.append(record)
                if len(found) == limit:
                    break
        return found

    def lease(self, run: str, owner: str, ttl: float) -> EitherLease:
        return EitherLease(self.client.lease(run, owner, ttl))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await _call(self.client, "close" if isinstance(self.client, Client) else "aclose")


class EitherLease:
    """A lease of either client."""

    def __init__(self, lease: Lease | AsyncLease) -> None:
        self.lease = lease

    async def __call__(self, name: str) -> None:
        await _call(self.lease, name)

    async def __aenter__(self) -> Self:
        name = "__enter__" if isinstance(self.lease, Lease) else "__aenter__"
        assert await _call(self.lease, name) is self.lease
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        name = "__exit__" if isinstance(self.lease, Lease) else "__aexit__"
        await _call(self.lease, name, kind, error, trace)


async def _call(thing: object, name: str, *arguments: Any, **options: Any) -> Any:
    method = getattr(thing, name)
    if isinstance(thing, (Client, Lease)):
        return await asyncio.to_thread(method, *arguments, **options)
    return await method(*arguments, **options)


def _stream(client: Client, run: str, limit: int | None, found: list[Any]) -> list[Any]:
    with closing(client.stream_records(run)) as records:
        for record in records:
            found.append(record)
            if len(found) == limit:
                break
    return found
