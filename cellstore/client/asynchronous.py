"""The asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self, Unpack

import httpx

from cellstore.client import lease, plans, wire
from cellstore.client.core import Answer, Pause, Plan, Result, Rules, Send, T
from cellstore.client.errors import StoreBroken, StoreError, Unavailable
from cellstore.client.spelling import Record
from cellstore.client.splitting import Splitter
from cellstore.client.wire import Options, Wire


class AsyncClient:
    """A run store's client. Close it, or use it as a context.

    Every method raises StoreError: see `errors.py` for what each class of it asks for.
    """

    def __init__(self, url: str, token: str | None = None, **options: Unpack[Options]) -> None:
        self._wire = Wire(url, token, **options)
        self._rules = self._wire.rules
        self._http = httpx.AsyncClient(**self._wire.settings)

    @classmethod
    def from_environment(cls, **options: Unpack[Options]) -> Self:
        """A client of CHIDORI_RUN_STORE with CHIDORI_RUN_STORE_TOKEN. Raises ValueError."""
        return cls(*wire.from_environment(), **options)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._rules.base.url}>"

    # Journals

    async def append(self, run: str, record: Record, *, repeat: bool = False) -> None:
        """Append a record, or replace the one with its `seq` where it stands.

        `repeat`: send the same text until it is acknowledged, whatever happens, while there is
        time. That is safe while nobody else writes this `seq`.
        """
        await self._run(plans.append(self._rules, run, record, repeat=repeat))

    async def replace(self, run: str, records: Iterable[Record]) -> None:
        """Replace the whole journal."""
        await self._run(plans.replace(self._rules, run, records))

    async def records(self, run: str) -> list[Any]:
        """The records in order; none for an unknown run."""
        return await self._run(plans.records(self._rules, run))

    async def journal(self, run: str) -> bytes | None:
        """The journal as it is stored, a JSON array; None when there is none."""
        answer = await self._run(plans.journal(self._rules, run))
        return None if answer is None else answer.body

    async def stream_records(self, run: str) -> AsyncGenerator[Any, None]:
        """The records in order, one at a time, for journals that are too large to hold.

        Close the generator if it is not used up. The deadline is for the first of them.
        """
        answer = await self._run(plans.journal(self._rules, run, streams=True))
        if answer is None:
            return
        response: httpx.Response = answer.stream
        splitter = Splitter()
        try:
            async for data in response.aiter_bytes():
                for text in splitter.feed(data):
                    yield plans.parse_record(run, text)
            splitter.end()
        except httpx.RequestError as fault:
            raise Unavailable(plans.broke_off(run, type(fault).__name__)) from fault
        except ValueError as fault:
            raise StoreBroken(plans.broke_off(run, str(fault))) from None
        finally:
            await response.aclose()

    async def runs(self) -> list[str]:
        """The ids of all runs."""
        return await self._run(plans.runs(self._rules))

    # Blobs

    async def blobs(self, run: str) -> list[str]:
        """The keys of a run's blobs; none for an unknown run."""
        return await self._run(plans.blobs(self._rules, run))

    async def get_blob(self, run: str, key: str) -> plans.Blob | None:
        """A blob and its tag; None when there is none."""
        return await self._run(plans.get_blob(self._rules, run, key))

    async def put_blob(
        self,
        run: str,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,
        if_none_match: Literal["*"] | None = None,
    ) -> str:
        """Write a blob and return its tag. Raises PreconditionFailed."""
        return await self._run(
            plans.put_blob(
                self._rules, run, key, data, if_match=if_match, if_none_match=if_none_match
            )
        )

    async def delete_blob(self, run: str, key: str, *, if_match: str | None = None) -> None:
        """Delete a blob; without a condition it need not be there. Raises PreconditionFailed."""
        await self._run(plans.delete_blob(self._rules, run, key, if_match=if_match))

    async def compare_and_swap(self, run: str, key: str, old: str | None, data: bytes) -> str:
        """Write a blob if its tag is `old` (None: if there is none). Returns the new tag.

        Raises PreconditionFailed where it is not.
        """
        return await self._run(plans.compare_and_swap(self._rules, run, key, old, data))

    async def update(self, run: str, key: str, change: Callable[[bytes | None], bytes]) -> str:
        """Swap a blob for what `change` makes of it (None: there is none). Returns the tag.

        `change` is called again where another writer was quicker, so it must do nothing else.
        """
        return await self._run(plans.update(self._rules, run, key, change))

    def lease(self, run: str, owner: str, ttl: float) -> AsyncLease:
        """A run's lease, to be taken as a context: see AsyncLease. `ttl` is in seconds."""
        return AsyncLease(self._rules, self._run, run, owner, ttl)

    # Nodes and the registry

    async def status(self, *, fleet: bool = False) -> dict[str, Any]:
        """What the node says of itself, with `fleet` of all nodes."""
        return await self._run(plans.status(self._rules, fleet=fleet))

    async def registry(self) -> list[Any]:
        """All registry entries, sorted by name."""
        return await self._run(plans.registry(self._rules))

    async def get_entry(self, name: str) -> Any:
        """A registry entry; None when there is none."""
        return await self._run(plans.get_entry(self._rules, name))

    async def put_entry(self, name: str, entry: object) -> None:
        """Write a registry entry: any JSON value, or its text as bytes."""
        await self._run(plans.put_entry(self._rules, name, entry))

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send what has no method here; the path is sent as it is. Returns a 2xx answer."""
        return await self._run(plans.request(self._rules, method, path, body, headers or {}))

    # The driver

    async def _run(self, plan: Plan[T]) -> T:
        result: Result | None = None
        while True:
            try:
                effect = plan.send(result)
            except StopIteration as end:
                value: T = end.value
                return value
            result = None
            if isinstance(effect, Pause):
                await asyncio.sleep(effect.seconds)
            else:
                result = await self._send(effect)

    async def _send(self, send: Send) -> Result:
        try:
            request = self._http.build_request(**self._wire.request(send))
            response = await self._http.send(request, stream=True)
            if self._wire.streams(send, response):
                return Answer(response.status_code, stream=response)
            body = bytearray()
            try:
                async for data in response.aiter_bytes():
                    if body and self._wire.late(send):
                        return wire.LATE
                    body += data
            finally:
                await response.aclose()
        except httpx.RequestError as fault:
            return wire.failed(fault)
        return wire.answer(response, bytes(body))


class _Runner(Protocol):
    async def __call__(self, plan: Plan[T]) -> T: ...


class AsyncLease(lease.Terms):
    """A lease for as long as a context lasts: taken at its start, removed at its end.

    Nothing renews it but `renew`. `owner` must be a name that nobody else uses. At the end of a
    context that raises, a lease that cannot be removed is left to run out.
    """

    def __init__(self, rules: Rules, runner: _Runner, run: str, owner: str, ttl: float) -> None:
        super().__init__(rules, run, owner, ttl)
        self._do = runner

    async def acquire(self) -> Self:
        """Take it. Raises LeaseHeld, or OwnedElsewhere where this node cannot decide it."""
        self._held = await self._do(lease.acquire(self._rules, self.run, self.owner, self.ttl))
        return self

    async def renew(self) -> None:
        """Make it last `ttl` from now. Raises LeaseLost."""
        held = self._taken()
        self._held = await self._do(lease.renew(self._rules, self.run, self.owner, self.ttl, held))

    async def release(self) -> None:
        """Remove it. Raises LeaseLost if it was not held to the end."""
        held, self._held = self._taken(), None
        await self._do(lease.release(self._rules, self.run, held))

    async def __aenter__(self) -> Self:
        return await self.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held is None:
            return
        try:
            await self.release()
        except StoreError:
            if error is None:
                raise
