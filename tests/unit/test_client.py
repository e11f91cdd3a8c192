"""Both clients against servers that break off, keep silent, redirect and repeat secrets."""

from __future__ import annotations

import contextlib
import inspect
import json
import ssl
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from typing import Any

import httpx
import pytest

from cellstore.client import (
    AsyncClient,
    AsyncLease,
    BadRequest,
    Client,
    Lease,
    LeaseLost,
    OutcomeUnknown,
    OwnedElsewhere,
    StoreBroken,
    StoreError,
    Unauthorized,
    Unavailable,
)
from cellstore.client.core import Silence, Unsent
from cellstore.client.wire import failed
from tests.support.processes import free_port
from tests.support.scripted import Request, answer, scripted
from tests.support.storeclient import KINDS, Either

TOKEN = "token-of-the-test"
RECORD = '{"seq": 1,  "x": 1.50}'
OK = answer(200, "ok")
BUSY = answer(503, "the node is stopping", Retry_After="0")
CLOSED = b""
SILENT = None
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1,"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def each(*answers: bytes | None) -> Callable[[Request], bytes | None]:
    """Answers one after the other, the last one ever again."""
    left = chain(answers, repeat(answers[-1]))
    return lambda _: next(left)


def fenced(url: str) -> bytes:
    return answer(409, json.dumps({"error": "owned", "owner": "b", "owner_url": url}))


def chunked(*parts: str) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p.encode()) for p in (*parts, ""))


async def test_the_same_request_goes_to_the_owner_once(kind: str) -> None:
    async with scripted(each(OK)) as owner, scripted(each(fenced(owner.endpoint))) as base:
        async with Either(kind, base.endpoint, TOKEN) as client:
            await client("append", "r", RECORD)
            await client("put_blob", "r", "a/../ä", b"data", if_match="ab")
            await client("request", "POST", "/runs/r/release?x=1", b"", {"x-more": "1"})
    assert [request.target for request in owner.requests] == [
        "/runs/r/records",
        "/runs/r/blobs/a/%2E%2E/%C3%A4",
        "/runs/r/release?x=1",
    ]
    for first, second in zip(base.requests, owner.requests, strict=True):
        assert first.headers.pop("host") != second.headers.pop("host")
        assert first == second
        assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert owner.requests[0].body == RECORD.encode()
    assert owner.requests[1].headers["if-match"] == '"ab"'
    assert owner.requests[2].headers["x-more"] == "1"


async def test_nothing_arrives_at_a_server_that_is_not_allowed(kind: str) -> None:
    async with scripted(each(OK)) as other, scripted(each(fenced(other.endpoint))) as base:
        patterns = ["http://*.internal:*", "https://127.0.0.1:*", "http://127.0.0.1:1"]
        async with Either(kind, base.endpoint, TOKEN, allow_owner_urls=patterns) as client:
            with pytest.raises(OwnedElsewhere) as raised:
                await client("append", "r", RECORD, repeat=True)
            assert raised.value.owner_url == other.endpoint
            with pytest.raises(OwnedElsewhere):
                await client.stream("r")
        async with Either(kind, base.endpoint, TOKEN) as client:
            with pytest.raises(OwnedElsewhere):
                await client.lease("r", "me", 30)("acquire")
    assert other.requests == []


async def test_redirects_are_not_followed(kind: str) -> None:
    async with scripted(each(OK)) as other:
        moved = answer(307, Location=f"{other.endpoint}/runs/r/records")
        async with scripted(each(moved)) as base, Either(kind, base.endpoint, TOKEN) as client:
            with pytest.raises(StoreBroken, match="answers 307"):
                await client("append", "r", RECORD)
    assert other.requests == []


async def test_no_proxy_from_the_environment(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(each(OK)) as proxy, scripted(each(OK)) as base:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
        monkeypatch.setenv("ALL_PROXY", proxy.endpoint)
        async with Either(kind, base.endpoint, TOKEN) as client:
            await client("append", "r", RECORD)
    assert (len(base.requests), proxy.requests) == (1, [])


@pytest.mark.parametrize("lost", [CLOSED, HALF, SILENT], ids=["closed", "half", "silent"])
async def test_a_write_without_an_answer_is_unknown(kind: str, lost: bytes | None) -> None:
    async with scripted(each(lost, OK)) as base:
        async with Either(kind, base.endpoint, timeout=0.3) as client:
            with pytest.raises(OutcomeUnknown, match="append to run `r`: it may be done or not"):
                await client("append", "r", RECORD)
    assert len(base.requests) == 1


@pytest.mark.parametrize("lost", [CLOSED, HALF, SILENT, BUSY, answer(502)])
async def test_an_append_is_repeated_where_that_is_asked_for(kind: str, lost: bytes | None) -> None:
    async with scripted(each(lost, lost, OK)) as base:
        async with Either(kind, base.endpoint, timeout=0.3) as client:
            await client("append", "r", RECORD, repeat=True)
    assert [request.body for request in base.requests] == [RECORD.encode()] * 3


async def test_a_repeated_append_ends_with_the_deadline(kind: str) -> None:
    async with scripted(each(CLOSED)) as base:
        async with Either(kind, base.endpoint, deadline=1.0) as client:
            with pytest.raises(OutcomeUnknown) as raised:
                await client("append", "r", RECORD, repeat=True)
    assert isinstance(raised.value.last, Unavailable)
    assert len(base.requests) > 2


async def test_503_is_repeated_within_the_deadline(kind: str) -> None:
    async with scripted(each(BUSY, BUSY, OK)) as base:
        async with Either(kind, base.endpoint) as client:
            await client("put_blob", "r", "k", b"")
    assert len(base.requests) == 3
    async with scripted(each(answer(503, Retry_After="1"))) as base:
        async with Either(kind, base.endpoint, deadline=0.5) as client:
            with pytest.raises(OutcomeUnknown):
                await client("put_blob", "r", "k", b"")
            with pytest.raises(Unavailable):
                await client("runs")
    assert len(base.requests) == 2


async def test_a_conditional_write_is_not_repeated(kind: str) -> None:
    async with scripted(each(BUSY)) as base, Either(kind, base.endpoint) as client:
        with pytest.raises(OutcomeUnknown):
            await client("compare_and_swap", "r", "k", None, b"")
        with pytest.raises(OutcomeUnknown):
            await client("delete_blob", "r", "k", if_match="ab")
    assert len(base.requests) == 2


async def test_refused_connections_leave_nothing_unknown(kind: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with Either(kind, url, deadline=0.5) as client:
        for name, arguments in (("append", ("r", RECORD)), ("runs", ())):
            with pytest.raises(Unavailable, match="no connection"):
                await client(name, *arguments)


async def test_reads_go_on_after_a_broken_connection(kind: str) -> None:
    runs = answer(200, '["r"]')
    async with scripted(each(CLOSED, HALF, runs)) as base, Either(kind, base.endpoint) as client:
        assert await client("runs") == ["r"]


async def test_an_answer_that_trickles_past_the_deadline(kind: str) -> None:
    for text, whole in ((chunked("o", "k"), False), (OK, True)):
        times = chain([0.0, 0.0], repeat(100.0))
        async with scripted(each(text)) as base:
            now = partial(next, times)
            async with Either(kind, base.endpoint, now=now) as client:
                with (
                    contextlib.nullcontext()
                    if whole
                    else pytest.raises(OutcomeUnknown, match="did not end in time")
                ):
                    await client("append", "r", RECORD)


# Streams


async def test_a_stream(kind: str) -> None:
    text = chunked('[{"se', 'q":1,"x":"],["},', ' {"seq":2}', "]")
    async with scripted(each(text)) as base, Either(kind, base.endpoint) as client:
        records = [{"seq": 1, "x": "],["}, {"seq": 2}]
        assert await client.stream("r") == records
        assert await client.stream("r", limit=1) == records[:1]
        assert await client("records", "r") == records
    async with scripted(each(answer(404, "no journal"))) as base:
        async with Either(kind, base.endpoint) as client:
            assert await client.stream("r") == []
            assert await client("journal", "r") is None


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (chunked('[{"seq":1},{', "]"), StoreBroken, "breaks off: the array breaks off"),
        (answer(200, '[{"seq":1},{'), StoreBroken, "breaks off"),
        (answer(200, "[{seq:1}]"), StoreBroken, "not the JSON"),
        (answer(200, "<html>"), StoreBroken, "not an array"),
        (HALF, Unavailable, "breaks off: RemoteProtocolError"),
        (answer(401, "unauthorized"), Unauthorized, "unauthorized"),
        (answer(404, "not found"), StoreError, "no run store"),
    ],
)
async def test_a_stream_that_is_no_journal(
    kind: str, text: bytes, error: type[StoreError], message: str
) -> None:
    async with scripted(each(text)) as base, Either(kind, base.endpoint) as client:
        with pytest.raises(error, match=message):
            await client.stream("r")


# Leases


async def test_a_lease_as_a_context(kind: str) -> None:
    stored: list[bytes] = []

    def serve(request: Request) -> bytes:
        if request.method == "GET":
            return answer(200, stored[0].decode()) if stored else answer(404)
        stored[:] = [request.body] if request.method == "PUT" else []
        return OK

    async with scripted(serve) as base, Either(kind, base.endpoint, wall=lambda: 1e9) as client:
        async with client.lease("r", "me", 30) as lease:
            assert (lease.lease.expires_at, lease.lease.remaining) == (1e9 + 30, 30)
            await lease("renew")
            assert json.loads(stored[0])["owner"] == "me"
            assert "30.0 s left" in repr(lease.lease)
        assert stored == []
        assert (lease.lease.expires_at, lease.lease.remaining) == (None, 0)
        with pytest.raises(LeaseLost, match="not held"):
            await lease("renew")
        async with lease:
            await lease("release")
    with pytest.raises(ValueError, match="ttl"):
        client.lease("r", "me", 0)


async def work_under_lease(client: Either, fails: bool) -> None:
    async with client.lease("r", "me", 30):
        if fails:
            raise ZeroDivisionError


@pytest.mark.parametrize("work_fails", [False, True])
async def test_the_end_of_a_lost_lease(kind: str, work_fails: bool) -> None:
    answers = [answer(404), OK, answer(412), answer(404)]
    async with scripted(each(*answers)) as base, Either(kind, base.endpoint) as client:
        with pytest.raises(ZeroDivisionError if work_fails else LeaseLost):
            await work_under_lease(client, work_fails)
    assert base.requests[2].method == "DELETE"


# Settings and secrets


async def test_no_token_in_messages(kind: str) -> None:
    def repeats(request: Request) -> bytes:
        return answer(400, f"what is {request.headers['authorization']}?")

    async with scripted(repeats) as base, Either(kind, base.endpoint, TOKEN) as client:
        with pytest.raises(BadRequest, match="Bearer") as raised:
            await client("runs")
        for text in (repr(raised.value), repr(client.client), str(vars(client.client))):
            assert TOKEN not in text
        assert base.endpoint in repr(client.client)
    told = json.dumps({"error": TOKEN, "owner": "b"})
    async with scripted(each(answer(409, told))) as base:
        async with Either(kind, base.endpoint, TOKEN) as client:
            with pytest.raises(OwnedElsewhere) as fence:
                await client("runs")
            assert TOKEN not in str(fence.value)


async def test_a_token_that_is_a_word_of_the_protocol(kind: str) -> None:
    async with scripted(each(OK)) as owner, scripted(each(fenced(owner.endpoint))) as base:
        async with Either(kind, base.endpoint, "owner") as client:
            await client("append", "r", RECORD)
    assert len(owner.requests) == 1


@pytest.mark.parametrize("maker", [Client, AsyncClient])
def test_bad_settings(maker: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("", "ftp://host", "http://user:secret@host", "http://host?q"):
        with pytest.raises(ValueError, match="URL of a run store") as raised:
            maker(url)
        assert "secret" not in str(raised.value)
    for token in ("", "a b", "a\nsecret", "sécret"):
        with pytest.raises(ValueError, match="the token") as raised:
            maker("http://host", token)
        assert "cret" not in str(raised.value)
    with pytest.raises(ValueError, match="not a pattern"):
        maker("http://host", allow_owner_urls=["*"])
    monkeypatch.delenv("CHIDORI_RUN_STORE", raising=False)
    with pytest.raises(ValueError, match="CHIDORI_RUN_STORE is not set"):
        maker.from_environment()


async def test_settings_from_the_environment(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(each(answer(200, "[]"))) as base:
        monkeypatch.setenv("CHIDORI_RUN_STORE", base.endpoint + "/")
        for token in (TOKEN, None):
            if token is None:
                monkeypatch.delenv("CHIDORI_RUN_STORE_TOKEN")
            else:
                monkeypatch.setenv("CHIDORI_RUN_STORE_TOKEN", token)
            if kind == "blocking":
                with Client.from_environment() as client:
                    assert client._http.headers.get("authorization") == (
                        token and f"Bearer {token}"
                    )
            else:
                async with AsyncClient.from_environment(timeout=3) as other:
                    assert await other.runs() == []
    monkeypatch.setenv("CHIDORI_RUN_STORE_TOKEN", "")
    with pytest.raises(ValueError, match="the token is empty"):
        Client.from_environment()


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        (httpx.ConnectError("refused"), Unsent("ConnectError: refused")),
        (httpx.ConnectTimeout(""), Unsent("ConnectTimeout")),
        (httpx.PoolTimeout(""), Unsent("PoolTimeout")),
        (httpx.ReadTimeout(""), Silence("ReadTimeout")),
        (httpx.WriteTimeout(""), Silence("WriteTimeout")),
        (httpx.ReadError(""), Silence("ReadError")),
        (httpx.WriteError(""), Silence("WriteError")),
        (httpx.RemoteProtocolError("gone"), Silence("RemoteProtocolError: gone")),
        (httpx.DecodingError("gzip"), Silence("DecodingError: gzip")),
    ],
)
def test_faults(fault: httpx.RequestError, result: object) -> None:
    assert failed(fault) == result


def test_a_bad_certificate_is_not_waited_for() -> None:
    error = httpx.ConnectError("certificate")
    error.__cause__ = OSError()
    error.__cause__.__context__ = ssl.SSLCertVerificationError()
    assert failed(error) == Unsent("ConnectError: certificate", lasting=True)


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Lease, AsyncLease)])
def test_both_clients_offer_the_same(one: type[object], other: type[object]) -> None:
    def surface(kind: type[object]) -> dict[str, str]:
        return {
            name.removeprefix("a") if name == "aclose" else name: str(inspect.signature(member))
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    ours, theirs = surface(one), surface(other)
    for name in ("stream_records", "lease"):
        for signatures in (ours, theirs):
            if name in signatures:
                signatures[name] = signatures[name].partition(" -> ")[0]
    assert ours == theirs
