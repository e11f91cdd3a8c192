"""What S3 alone can do: prefixes, missing buckets, servers that answer wrongly or not at all."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from cellstore.objects import ObjectStore, Outcome, StoreFault
from cellstore.s3 import S3Store
from cellstore.s3config import S3Config
from tests.support.processes import free_port
from tests.support.scripted import Answering, Request, Scripted, answer, error, scripted
from tests.support.stores import Opener, opener

MIB = 1024 * 1024
SECRETS = ["AKIDSECRET", "secret-of-the-account", "token-of-the-session"]
CONFIG = S3Config(
    bucket="journals",
    prefix="pre/",
    access_key_id=SECRETS[0],
    secret_access_key=SECRETS[1],
    session_token=SECRETS[2],
    deadline=5.0,
)
DATE = "Sun, 06 Nov 1994 08:49:37 GMT"

_numbers = count()


@pytest.fixture(params=["moto", "versitygw"], scope="module")
def open_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opener]:
    with opener(request.param, tmp_path_factory.mktemp("objects") / "bucket") as opening:
        yield opening


async def keys(store: ObjectStore, prefix: str) -> list[str]:
    return [entry.key for entry in (await store.list(prefix)).entries]


async def test_prefixes_are_worlds_apart(open_store: Opener) -> None:
    base = f"worlds/{next(_numbers)}"
    async with open_store(base) as one, open_store(f"{base}2") as two, open_store("") as whole:
        await one.put("cells/a/x", b"1")
        assert await keys(one, "") == ["cells/a/x"]
        assert await one.folders("cells/") == ["a"]
        assert await keys(two, "") == []
        assert (await two.create("cells/a/x", b"2")).outcome is Outcome.CREATED
        await two.delete(["cells/a/x"])
        assert await keys(one, "") == ["cells/a/x"]
        assert await keys(whole, f"{base}/") == [f"{base}/cells/a/x"]
        assert base.split("/")[1] in await whole.folders("worlds/")
        assert (await whole.create(f"{base}/cells/a/x", b"3")).outcome is Outcome.EXISTS


async def test_a_missing_bucket_is_not_a_missing_object(open_store: Opener, tmp_path: Path) -> None:
    async with open_store("") as store:
        assert isinstance(store, S3Store)
        store._config = replace(store._config, bucket="no-such-bucket")
        with pytest.raises(StoreFault, match="get a: 404 NoSuchBucket"):
            await store.get("a")
        with pytest.raises(StoreFault, match="get a: 404 NoSuchBucket"):
            await store.fetch("a", tmp_path / "a")
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(StoreFault, match="list x: 404 NoSuchBucket"):
            await store.list("x")
        with pytest.raises(StoreFault, match="put a: 404 NoSuchBucket"):
            await store.put("a", b"")
        with pytest.raises(StoreFault, match="delete a: 404 NoSuchBucket"):
            await store.delete(["a"])
        for put in (await store.create("a", b""), await store.replace("a", b"", '"x"')):
            assert put.outcome is Outcome.UNKNOWN
            assert "404 NoSuchBucket" in put.fault


@contextlib.asynccontextmanager
async def facing(
    answering: Answering | bytes | None, config: S3Config = CONFIG
) -> AsyncIterator[tuple[S3Store, Scripted]]:
    """A store whose server answers as told, or always the same."""

    def always(_: Request) -> bytes | None:
        assert not callable(answering)
        return answering

    async with scripted(answering if callable(answering) else always) as server:
        async with S3Store.open(replace(config, endpoint=server.endpoint)) as store:
            yield store, server


@pytest.mark.parametrize(
    ("sent", "outcome", "fault"),
    [
        (answer(200, date=DATE, ETag='"e"'), Outcome.CREATED, ""),
        (error(412, "PreconditionFailed"), Outcome.EXISTS, ""),
        (error(404, "NoSuchKey"), Outcome.UNKNOWN, "create a: 404 NoSuchKey"),
        (error(404, "NoSuchBucket"), Outcome.UNKNOWN, "create a: 404 NoSuchBucket"),
        (
            error(409, "ConditionalRequestConflict"),
            Outcome.UNKNOWN,
            "create a: 409 ConditionalRequestConflict",
        ),
        (error(403, "AccessDenied"), Outcome.UNKNOWN, "create a: 403 AccessDenied"),
        (error(500, "InternalError"), Outcome.UNKNOWN, "create a: 500 InternalError"),
        (error(503, "SlowDown"), Outcome.UNKNOWN, "create a: 503 SlowDown"),
        (answer(502, "<html>bad gateway"), Outcome.UNKNOWN, "create a: "),
        (answer(200), Outcome.UNKNOWN, "create a: the answer is not an object store's"),
        (b"nonsense\r\n\r\n", Outcome.UNKNOWN, "create a: "),
    ],
)
async def test_a_create_is_sent_once(sent: bytes, outcome: Outcome, fault: str) -> None:
    async with facing(sent) as (store, server):
        put = await store.create("a", b"content")
    assert put.outcome is outcome
    assert put.fault.startswith(fault)
    assert bool(put.fault) == (outcome is Outcome.UNKNOWN)
    assert put.date == (784111777.0 if DATE.encode() in sent else None)
    [request] = server.requests
    assert (request.method, request.target) == ("PUT", "/journals/pre/a")
    assert request.headers["if-none-match"] == "*"
    assert "expect" not in request.headers
    assert request.body == b"content"


async def test_a_replacement_of_what_is_gone() -> None:
    async with facing(error(404, "NoSuchKey")) as (store, server):
        assert (await store.replace("a", b"1", '"e"')).outcome is Outcome.EXISTS
        assert (await store.replace("a", b"1", None)).outcome is Outcome.UNKNOWN
    assert server.requests[0].headers["if-match"] == '"e"'
    assert server.requests[1].headers["if-none-match"] == "*"


async def test_a_hung_server() -> None:
    async with facing(None, replace(CONFIG, deadline=0.2)) as (store, server):
        put = await store.create("a", b"1")
        assert (put.outcome, put.fault[:10]) == (Outcome.UNKNOWN, "create a: ")
        assert len(server.requests) == 1
        with pytest.raises(StoreFault, match=r"get a: (no answer in time|ReadTimeoutError)"):
            await asyncio.wait_for(store.get("a"), 5)


async def test_a_dead_server() -> None:
    config = replace(CONFIG, endpoint=f"http://127.0.0.1:{free_port()}")
    async with S3Store.open(config) as store:
        put = await store.create("a", b"1")
        assert put.outcome is Outcome.UNKNOWN
        assert put.fault == "create a: EndpointConnectionError, Connection refused"
        with pytest.raises(StoreFault, match="list a: EndpointConnectionError, Connection refused"):
            await store.list("a")


async def test_a_caller_that_stops_waiting_is_not_kept() -> None:
    async with facing(None) as (store, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.create("a", b"1"), 0.1)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("a"),
        lambda store: store.list("a"),
        lambda store: store.folders("a"),
        lambda store: store.put("a", b"1"),
        lambda store: store.delete(["a"]),
    ],
    ids=["get", "list", "folders", "put", "delete"],
)
async def test_other_calls_are_tried_again(call: Callable[[S3Store], AsyncIterator[None]]) -> None:
    async with facing(error(503, "SlowDown")) as (store, server):
        with pytest.raises(StoreFault, match=r"(get|list|put|delete) a: 503 SlowDown"):
            await call(store)  # type: ignore[misc]
    assert len(server.requests) == 3


async def test_a_body_that_breaks_off_is_read_again(tmp_path: Path) -> None:
    cut = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10\r\n\r\n12345'
    answers = [cut, answer(200, "1234567890", ETag='"e"')]
    async with facing(lambda _: answers.pop(0)) as (store, _):
        got = await store.get("a")
        assert got is not None
        assert got.data == b"1234567890"
        answers += [cut, answer(200, "1234567890", ETag='"e"')]
        assert await store.fetch("a", tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == b"1234567890"
    async with facing(cut) as (store, server):
        with pytest.raises(StoreFault, match="get a: "):
            await store.get("a")
        assert len(server.requests) == 3
        with pytest.raises(StoreFault, match="get b: "):
            await store.fetch("b", tmp_path / "b")
    assert not (tmp_path / "b").exists()


async def test_a_disk_that_is_full_is_no_fault_of_the_store(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with facing(answer(200, "x" * 3 * MIB, ETag='"e"')) as (store, server):
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                await store.fetch("a", tmp_path / "a")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("sent", [answer(404), answer(404, "<html>not here"), error(404, "404")])
async def test_a_404_of_somebody_else_is_not_nothing(sent: bytes) -> None:
    async with facing(sent) as (store, _):
        with pytest.raises(StoreFault, match="get a: "):
            await store.get("a")


async def test_no_secret_is_told() -> None:
    def telltale(request: Request) -> bytes:
        said = f"{request.headers} {request.body!r} {SECRETS}"
        return error(403, said.replace("<", ""), said.replace("<", ""))

    async with facing(telltale) as (store, _):
        told = [(await store.create("a", b"content")).fault]
        for call in (store.get("a"), store.list("a"), store.put("a", b"content")):
            with pytest.raises(StoreFault) as raised:
                await call
            told.append(str(raised.value))
            assert raised.value.__cause__ is None
            assert raised.value.__suppress_context__
    assert told == [f"{op} a: 403 unknown error" for op in ("create", "get", "list", "put")]
    for secret in SECRETS:
        assert secret not in repr(CONFIG)


async def test_a_failed_upload_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(40 * MIB)

    def refusing(request: Request) -> bytes:
        if request.method == "POST":
            started = "<InitiateMultipartUploadResult><UploadId>u1</UploadId>"
            return answer(200, started + "</InitiateMultipartUploadResult>")
        if request.method == "DELETE":
            return error(500, "InternalError")
        if "partNumber=2" in request.target:
            return error(403, "AccessDenied")
        return answer(200, ETag='"e"')

    config = replace(CONFIG, deadline=1.0)
    async with facing(refusing, config) as (store, server):
        with pytest.raises(StoreFault, match="put a part 2: 403 AccessDenied"):
            await store.put("a", path)
    assert ("DELETE", "/journals/pre/a?uploadId=u1") in {r[:2] for r in server.requests}


async def test_deletes_that_fail_in_part() -> None:
    failed = "<Error><Key>pre/b</Key><Code>AccessDenied</Code><Message>x</Message></Error>"
    gone = "<Error><Key>pre/c</Key><Code>NoSuchKey</Code></Error>"
    answers = [
        answer(200, f"<DeleteResult>{failed}{gone}</DeleteResult>"),
        answer(200, f"<DeleteResult>{gone}</DeleteResult>"),
    ]
    async with facing(lambda _: answers.pop(0)) as (store, server):
        with pytest.raises(StoreFault, match=r"delete b: AccessDenied \(1 of 3 failed\)"):
            await store.delete(["a", "b", "c"])
        await store.delete(["c"])
    digest = hashlib.md5(server.requests[0].body).digest()
    assert base64.b64decode(server.requests[0].headers["content-md5"]) == digest


async def test_a_page_that_welcomes_everything_is_not_believed() -> None:
    def portal(request: Request) -> bytes:
        if request.target.startswith("/login"):
            return answer(200, "<html><body>Welcome</body></html>")
        return answer(302, Location="/login")

    async with facing(portal) as (store, _):
        for put in (await store.create("a", b"1"), await store.replace("a", b"1", '"e"')):
            assert put.outcome is Outcome.UNKNOWN
        with pytest.raises(StoreFault, match="get a: the answer is not an object store's"):
            await store.get("a")
        with pytest.raises(StoreFault, match="list a: the answer is not an object store's"):
            await store.list("a")
        with pytest.raises(StoreFault, match="list a: the answer is not an object store's"):
            await store.folders("a")


def listing(*names: str, more: str = "<IsTruncated>false</IsTruncated>") -> bytes:
    entries = "".join(
        f"<Contents><Key>pre/{name}</Key><Size>1</Size>"
        "<LastModified>1994-11-06T08:49:30.000Z</LastModified></Contents>"
        for name in names
    )
    return answer(200, f"<ListBucketResult>{more}{entries}</ListBucketResult>", DATE)


async def test_the_date_of_a_listing_is_its_last_entry_s() -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>"
    answers = [
        listing("a", more=more % "t"),
        listing("b", more=more % "u").replace(b"08:49:37", b"08:49:39"),
        listing().replace(b"08:49:37", b"08:49:41"),
    ]
    async with facing(lambda _: answers.pop(0)) as (store, server):
        found = await store.list("", "A")
        assert [(e.key, e.modified) for e in found.entries] == [
            ("a", 784111770.0),
            ("b", 784111770.0),
        ]
        assert found.date == 784111779.0
    assert "start-after=pre%2FA" in server.requests[0].target
    assert "continuation-token=t" in server.requests[1].target


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (listing("b", "a"), "not in the order"),
        (listing("a", "a"), "not in the order"),
        (listing("a", more="<IsTruncated>true</IsTruncated>"), "cut off"),
    ],
)
async def test_listings_that_cannot_be_trusted(sent: bytes, fault: str) -> None:
    async with facing(sent) as (store, _):
        with pytest.raises(StoreFault, match=f"list : the answer is {fault}"):
            await store.list("")


async def test_a_connection_that_breaks_may_carry_a_create_twice() -> None:
    """What makes every outcome but two unknown: the HTTP client sends again by itself."""
    async with facing(b"") as (store, server):
        put = await store.create("a", b"1")
    assert (put.outcome, put.fault) == (Outcome.UNKNOWN, "create a: ConnectionClosedError")
    assert [request.target for request in server.requests] == ["/journals/pre/a"] * 2

    answers = [b"", error(412, "PreconditionFailed")]
    async with facing(lambda _: answers.pop(0)) as (store, server):
        put = await store.create("a", b"1")
    assert len(server.requests) == 2
    assert put.outcome is Outcome.EXISTS
