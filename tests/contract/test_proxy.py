"""The network that fails on demand passes everything on, and fails as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from cellstore.objects import Outcome, StoreFault
from cellstore.s3 import S3Store
from cellstore.s3config import from_environment
from tests.support.moto import Moto, moto
from tests.support.processes import wait_for
from tests.support.proxy import Proxy, kind, proxy
from tests.support.scripted import Request, answer, scripted

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Moto]:
    with moto() as server:
        yield server


@pytest.fixture(scope="module")
def running(server: Moto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxy(server.endpoint, tmp_path_factory.mktemp("proxy") / "log") as running:
        yield running
        assert running.process.log() == ""


@pytest.fixture
def network(running: Proxy) -> Iterator[Proxy]:
    running.reset()
    yield running
    running.set(delay_ms=0, cut=False, blackhole=False, unavailable=0, lose_answer=0, only="")


@pytest.fixture
async def store(network: Proxy, server: Moto) -> AsyncIterator[S3Store]:
    config = from_environment(f"{server.url}/proxied", server.environment(network.endpoint))
    async with S3Store.open(replace(config, deadline=1.0)) as store:
        yield store


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("PUT", "/b/p/cells/a/meta/1.json", "meta"),
        ("GET", "/b/p/cells/a/state/1-x.seg", "state"),
        ("GET", "/b?list-type=2&prefix=p/cells/a/meta/", "list"),
        ("POST", "/b?delete", "delete"),
        ("POST", "/b?delete=", "delete"),
        ("DELETE", "/b/p/cells/a/meta/1.json", "delete"),
        ("POST", "/b/p/cells/a/state/1?uploads", "state"),
        ("PUT", "/b/p/registry/deleted.json", "other"),
    ],
)
def test_kinds(method: str, target: str, expected: str) -> None:
    assert kind(method, target) == expected


async def test_everything_passes_and_is_counted(
    store: S3Store, network: Proxy, tmp_path: Path
) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(33 * MIB))
    assert (await store.create("cells/a/meta/1", b"12345")).outcome is Outcome.CREATED
    assert (await store.create("cells/a/meta/1", b"12345")).outcome is Outcome.EXISTS
    await store.put("cells/a/state/1", big)
    assert await store.fetch("cells/a/state/1", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    assert [e.key for e in (await store.list("cells/a/meta/")).entries] == ["cells/a/meta/1"]
    await store.delete(["cells/a/meta/1", "cells/a/state/1"])
    counts = network.counts()
    assert counts["requests"] == {
        "PUT meta": 2,
        "POST state": 2,
        "PUT state": 3,
        "GET state": 1,
        "GET list": 1,
        "POST delete": 1,
    }
    assert 33 * MIB < counts["bytes_up"] < 34 * MIB
    assert 33 * MIB < counts["bytes_down"] < 34 * MIB
    network.reset()
    assert network.counts()["requests"] == {}


async def test_delay(store: S3Store, network: Proxy) -> None:
    network.set(delay_ms=300)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(store.get(f"other/{n}") for n in range(8)))
    assert 0.3 <= loop.time() - began < 0.9


async def test_cut(store: S3Store, network: Proxy) -> None:
    await store.create("cut/1", b"1")
    network.set(cut=True)
    assert network.counts()["connections"] == 0
    put = await store.create("cut/2", b"1")
    assert put.outcome is Outcome.UNKNOWN
    network.set(cut=False)
    assert (await store.create("cut/2", b"1")).outcome is Outcome.CREATED


async def test_blackhole(store: S3Store, network: Proxy) -> None:
    await store.create("dark/1", b"1")
    network.set(blackhole=True)
    put = await store.create("dark/2", b"1")
    assert put.outcome is Outcome.UNKNOWN
    assert "in time" in put.fault or "Timeout" in put.fault
    network.set(blackhole=False)
    # What was sent into the dark never came out of it.
    assert await store.get("dark/2") is None


async def test_unavailable(store: S3Store, network: Proxy) -> None:
    network.set(unavailable=1.0, only="PUT meta")
    put = await store.create("x/meta/1", b"1" * 100_000)
    assert put.fault == "create x/meta/1: 503 SlowDown"
    assert (await store.create("x/state/1", b"1")).outcome is Outcome.CREATED
    assert network.counts()["injected"] == {"unavailable": 1}
    network.set(unavailable=0.5, only="")
    puts = [await store.create(f"x/meta/{n}", b"1") for n in range(40)]
    assert 5 < [put.outcome for put in puts].count(Outcome.CREATED) < 35


async def test_lost_answers(store: S3Store, network: Proxy) -> None:
    network.set(lose_answer=1.0, only="PUT")
    put = await store.create("lost/1", b"1")
    assert put.outcome is Outcome.UNKNOWN
    got = await store.get("lost/1")
    assert got is not None
    assert got.data == b"1"
    with pytest.raises(StoreFault):
        await store.put("lost/2", b"2")


async def test_framing(tmp_path: Path) -> None:
    """Chunks both ways, an answer that ends with the connection, and one that has no body."""
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: 1\r\n\r\n"
    )
    answers = {
        "/chunked": chunked,
        "/close": b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        "/none": b"HTTP/1.1 204 No Content\r\n\r\n",
        "/head": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    }

    def answering(request: Request) -> bytes:
        return answers.get(request.target) or answer(200, request.body.decode())

    async with scripted(answering) as server:
        with proxy(server.endpoint, tmp_path / "log") as running:
            async with httpx.AsyncClient(base_url=running.endpoint) as client:
                assert (await client.get("/chunked")).text == "hello world"
                assert (await client.get("/close")).text == "until the end"
                assert (await client.get("/none")).status_code == 204
                assert (await client.put("/echo", content=b"body")).text == "body"
                waiting = {"Expect": "100-continue"}
                told = await client.put("/echo", content=b"body", headers=waiting)
                assert told.text == "body"
                assert (await client.head("/head")).headers["content-length"] == "5"
            down = running.counts()["bytes_down"]
            assert down == len("hello world" + "until the end" + "body" + "body")
            wait_for(lambda: running.counts()["connections"] == 0, "closing")
            assert running.process.log() == ""
