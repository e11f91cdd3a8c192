"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self, Unpack

import httpx

from cellstore.client import lease, plans, wire
from cellstore.client.core import Answer, Pause, Plan, Result, Rules, Send, T
from cellstore.client.errors import StoreBroken, StoreError, Unavailable
from cellstore.client.spelling import Record
from cellstore.client.splitting import Splitter
from cellstore.client.wire import Options, Wire


class Client:
    """A run store's client. Threads may share it; close it, or use it as a context.

    Every method raises StoreError: see `errors.py` for what each class of it asks for.
    """

    def __init__(self, url: str, token: str | None = None, **options: Unpack[Options]) -> None:
        self._wire = Wire(url, token, **options)
        self._rules = self._wire.rules
        self._http = httpx.Client(**self._wire.settings)

    @classmethod
    def from_environment(cls, **options: Unpack[Options]) -> Self:
        """A client of CHIDORI_RUN_STORE with CHIDORI_RUN_STORE_TOKEN. Raises ValueError."""
        return cls(*wire.from_environment(), **options)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self._rules.base.url}>"

    # Journals

    def append(self, run: str, record: Record, *, repeat: bool = False) -> None:
        """Append a record, or replace the one with its `seq` where it stands.

        `repeat`: send the same text until it is acknowledged, whatever happens, while there is
        time. That is safe while nobody else writes this `seq`.
        """
        self._run(plans.append(self._rules, run, record, repeat=repeat))

    def replace(self, run: str, records: Iterable[Record]) -> None:
        """Replace the whole journal."""
        self._run(plans.replace(self._rules, run, records))

    def records(self, run: str) -> list[Any]:
        """The records in order; none for an unknown run."""
        return self._run(plans.records(self._rules, run))

    def journal(self, run: str) -> bytes | None:
        """The journal as it is stored, a JSON array; None when there is none."""
        answer = self._run(plans.journal(self._rules, run))
        return None if answer is None else answer.body

    def stream_records(self, run: str) -> Generator[Any, None, None]:
        """The records in order, one at a time, for journals that are too large to hold.

        Close the generator if it is not used up. The deadline is for the first of them.
        """
        answer = self._run(plans.journal(self._rules, run, streams=True))
        if answer is None:
            return
        response: httpx.Response = answer.stream
        splitter = Splitter()
        try:
            for data in response.iter_bytes():
                for text in splitter.feed(data):
                    yield plans.parse_record(run, text)
            splitter.end()
        except httpx.RequestError as fault:
            raise Unavailable(plans.broke_off(run, type(fault).__name__)) from fault
        except ValueError as fault:
            raise StoreBroken(plans.broke_off(run, str(fault))) from None
        finally:
            response.close()

    def runs(self) -> list[str]:
        """The ids of all runs."""
        return self._run(plans.runs(self._rules))

    # Blobs

    def blobs(self, run: str) -> list[str]:
        """The keys of a run's blobs; none for an unknown run."""
        return self._run(plans.blobs(self._rules, run))

    def get_blob(self, run: str, key: str) -> plans.Blob | None:
        """A blob and its tag; None when there is none."""
        return self._run(plans.get_blob(self._rules, run, key))

    def put_blob(
        self,
        run: str,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,
        if_none_match: Literal["*"] | None = None,
    ) -> str:
        """Write a blob and return its tag. Raises PreconditionFailed."""
        return self._run(
            plans.put_blob(
                self._rules, run, key, data, if_match=if_match, if_none_match=if_none_match
            )
        )

    def delete_blob(self, run: str, key: str, *, if_match: str | None = None) -> None:
        """Delete a blob; without a condition it need not be there. Raises PreconditionFailed."""
        self._run(plans.delete_blob(self._rules, run, key, if_match=if_match))

    def compare_and_swap(self, run: str, key: str, old: str | None, data: bytes) -> str:
        """Write a blob if its tag is `old` (None: if there is none). Returns the new tag.

        Raises PreconditionFailed where it is not.
        """
        return self._run(plans.compare_and_swap(self._rules, run, key, old, data))

    def update(self, run: str, key: str, change: Callable[[bytes | None], bytes]) -> str:
        """Swap a blob for what `change` makes of it (None: there is none). Returns the tag.

        `change` is called again where another writer was quicker, so it must do nothing else.
        """
        return self._run(plans.update(self._rules, run, key, change))

    def lease(self, run: str, owner: str, ttl: float) -> Lease:
        """A run's lease, to be taken as a context: see Lease. `ttl` is in seconds."""
        return Lease(self._rules, self._run, run, owner, ttl)

    # Nodes and the registry

    def status(self, *, fleet: bool = False) -> dict[str, Any]:
        """What the node says of itself, with `fleet` of all nodes."""
        return self._run(plans.status(self._rules, fleet=fleet))

    def registry(self) -> list[Any]:
        """All registry entries, sorted by name."""
        return self._run(plans.registry(self._rules))

    def get_entry(self, name: str) -> Any:
        """A registry entry; None when there is none."""
        return self._run(plans.get_entry(self._rules, name))

    def put_entry(self, name: str, entry: object) -> None:
        """Write a registry entry: any JSON value, or its text as bytes."""
        self._run(plans.put_entry(self._rules, name, entry))

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send what has no method here; the path is sent as it is. Returns a 2xx answer."""
        return self._run(plans.request(self._rules, method, path, body, headers or {}))

    # The driver

    def _run(self, plan: Plan[T]) -> T:
        result: Result | None = None
        while True:
            try:
                effect = plan.send(result)
            except StopIteration as end:
                value: T = end.value
                return value
            result = None
            if isinstance(effect, Pause):
                time.sleep(effect.seconds)
            else:
                result = self._send(effect)

    def _send(self, send: Send) -> Result:
        try:
            request = self._http.build_request(**self._wire.request(send))
            response = self._http.send(request, stream=True)
            if self._wire.streams(send, response):
                return Answer(response.status_code, stream=response)
            body = bytearray()
            try:
                for data in response.iter_bytes():
                    if body and self._wire.late(send):
                        return wire.LATE
                    body += data
            finally:
                response.close()
        except httpx.RequestError as fault:
            return wire.failed(fault)
        return wire.answer(response, bytes(body))


class _Runner(Protocol):
    def __call__(self, plan: Plan[T]) -> T: ...


class Lease(lease.Terms):
    """A lease for as long as a context lasts: taken at its start, removed at its end.

    Nothing renews it but `renew`. `owner` must be a name that nobody else uses. At the end of a
    context that raises, a lease that cannot be removed is left to run out.
    """

    def __init__(self, rules: Rules, runner: _Runner, run: str, owner: str, ttl: float) -> None:
        super().__init__(rules, run, owner, ttl)
        self._do = runner

    def acquire(self) -> Self:
        """Take it. Raises LeaseHeld, or OwnedElsewhere where this node cannot decide it."""
        self._held = self._do(lease.acquire(self._rules, self.run, self.owner, self.ttl))
        return self

    def renew(self) -> None:
        """Make it last `ttl` from now. Raises LeaseLost."""
        held = self._taken()
        self._held = self._do(lease.renew(self._rules, self.run, self.owner, self.ttl, held))

    def release(self) -> None:
        """Remove it. Raises LeaseLost if it was not held to the end."""
        held, self._held = self._taken(), None
        self._do(lease.release(self._rules, self.run, held))

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held is None:
            return
        try:
            self.release()
        except StoreError:
            if error is None:
                raise
