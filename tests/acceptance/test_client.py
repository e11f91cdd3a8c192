"""The clients on two real nodes that share a bucket, and the examples of their guide."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from cellstore.client import (
    BadRequest,
    LeaseHeld,
    LeaseLost,
    OwnedElsewhere,
    PreconditionFailed,
    Unauthorized,
)
from tests.support import versitygw
from tests.support.client import record
from tests.support.processes import Process, free_port, node, wait_for
from tests.support.scripted import answer, scripted
from tests.support.storeclient import KINDS, Either

TOKEN = "acceptance-token"
GUIDE = Path(__file__).parents[2] / "docs" / "client.md"


class Pair(NamedTuple):
    """Two nodes; the first comes to own whatever is asked of it first."""

    one: Process
    two: Process


@contextlib.contextmanager
def member(root: Path, gateway: versitygw.Versitygw) -> Iterator[Process]:
    port = free_port()
    options = ["--bucket", gateway.url, "--advertise", f"http://127.0.0.1:{port}"]
    environment = gateway.environment()
    with node(root, *options, token=TOKEN, port=port, environment=environment) as process:
        wait_for(lambda: httpx.get(f"{process.url}/readyz").is_success, "being ready")
        yield process


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    if versitygw.install() is None:
        pytest.skip(f"versitygw is not at {versitygw.binary()} and there is no go to build it with")
    root = tmp_path_factory.mktemp("fleet")
    with versitygw.versitygw(root / "bucket") as gateway:
        with member(root / "one", gateway) as one, member(root / "two", gateway) as two:
            yield Pair(one, two)


@pytest.fixture(params=KINDS)
def either(request: pytest.FixtureRequest) -> Callable[..., Either]:
    """Makes clients of one kind."""

    def make(url: str, token: str | None = TOKEN, **options: Any) -> Either:
        return Either(request.param, url, token, **options)

    return make


_numbers = count()


@pytest.fixture
def run() -> str:
    return f"run-{next(_numbers)}"


async def test_all_operations(nodes: Pair, either: Callable[..., Either], run: str) -> None:
    async with either(nodes.one.url) as client:
        assert await client("records", run) == []
        assert await client("blobs", run) == []
        await client("append", run, record(2))
        await client("append", run, {"seq": 1, "x": "],[ä"}, repeat=True)
        await client("append", run, record(2))
        records = [json.loads(record(2)), {"seq": 1, "x": "],[ä"}]
        assert await client("records", run) == await client.stream(run) == records
        await client("replace", run, [b'{"seq": 7,  "x": 1.50}', {"seq": 8}])
        assert await client("journal", run) == b'[{"seq": 7,  "x": 1.50},{"seq":8}]'
        assert run in await client("runs")
        for key in ("a/b.json", "..", "a/../b", "./x", "a//b", "%2e", "ä ?#\0\r\n"):
            tag = await client("put_blob", run, key, key.encode())
            assert await client("get_blob", run, key) == (key.encode(), tag)
            assert key in await client("blobs", run)
            with pytest.raises(PreconditionFailed):
                await client("compare_and_swap", run, key, None, b"x")
            new = await client("compare_and_swap", run, key, tag, b"x")
            with pytest.raises(PreconditionFailed):
                await client("delete_blob", run, key, if_match=tag)
            await client("delete_blob", run, key, if_match=new)
            assert await client("get_blob", run, key) is None
        await client("put_entry", run, {"name": run})
        assert await client("get_entry", run) == {"name": run}
        assert {"name": run} in await client("registry")
        assert await client("get_entry", "nobody") is None
        assert run in [cell["cell"] for cell in (await client("status"))["cells"]]
        assert (await client("request", "GET", "/healthz")).body == b"ok"
        with pytest.raises(BadRequest, match="seq"):
            await client("append", run, {"x": 1})
    async with either(nodes.one.url, "wrong-token") as client:
        with pytest.raises(Unauthorized) as raised:
            await client("runs")
        assert "wrong-token" not in str(raised.value)


async def test_follows_to_the_owner(nodes: Pair, either: Callable[..., Either], run: str) -> None:
    async with either(nodes.one.url) as owner, either(nodes.two.url) as client:
        await owner("append", run, record(1))
        await client("append", run, record(2))
        tag = await client("compare_and_swap", run, "k", None, b"1")
        assert await client("get_blob", run, "k") == (b"1", tag)
        await client("update", run, "k", lambda data: (data or b"") + b"2")
        assert (await owner("get_blob", run, "k")).data == b"12"
        assert [entry["seq"] for entry in await client.stream(run)] == [1, 2]


async def test_no_second_hop(nodes: Pair, either: Callable[..., Either], run: str) -> None:
    async with either(nodes.one.url) as owner:
        await owner("append", run, record(1))
    told = json.dumps({"error": "owned", "owner": "node-b", "owner_url": nodes.two.url})
    async with scripted(lambda _: answer(409, told)) as base:
        async with either(base.endpoint) as client:
            with pytest.raises(OwnedElsewhere) as raised:
                await client("append", run, record(2), repeat=True)
    # The second answer is that of a node that names the first.
    assert raised.value.owner_url == nodes.one.url
    assert len(base.requests) == 1
    async with either(nodes.one.url) as owner:
        assert len(await owner("records", run)) == 1


async def test_an_owner_that_is_not_allowed_is_not_asked(
    nodes: Pair, either: Callable[..., Either], run: str
) -> None:
    async with either(nodes.one.url) as owner:
        await owner("append", run, record(1))
    async with either(nodes.two.url, allow_owner_urls=["http://*.internal:*"]) as client:
        with pytest.raises(OwnedElsewhere) as raised:
            await client("append", run, record(2))
    assert raised.value.owner_url == nodes.one.url
    async with either(nodes.two.url, allow_owner_urls=["http://127.0.0.*:*"]) as client:
        await client("append", run, record(2))


async def test_leases(nodes: Pair, either: Callable[..., Either], run: str) -> None:
    async with either(nodes.one.url) as client, either(nodes.two.url) as stranger:
        async with client.lease(run, "one", 60) as lease:
            await lease("renew")
            with pytest.raises(LeaseHeld) as held:
                await client.lease(run, "two", 60)("acquire")
            assert held.value.owner == "one"
            # The verdict of a node that does not own the run is not taken elsewhere.
            with pytest.raises(OwnedElsewhere) as raised:
                await stranger.lease(run, "two", 60)("acquire")
            assert raised.value.owner_url == nodes.one.url
            await client.lease(run, "one", 60)("acquire")
            with pytest.raises(LeaseLost, match="`one` has it"):
                await lease("renew")
            await client("delete_blob", run, "lease.json")
            await client.lease(run, "two", 60)("acquire")
            with pytest.raises(LeaseLost, match="`two` has it"):
                await lease("release")


async def test_a_large_journal(nodes: Pair, either: Callable[..., Either], run: str) -> None:
    texts = [record(seq, text='"],[\\' * 1000) for seq in range(400)]
    async with either(nodes.two.url) as owner, either(nodes.one.url) as client:
        await owner("replace", run, texts)
        assert await client.stream(run) == [json.loads(text) for text in texts]
        assert len(await client.stream(run, limit=3)) == 3
        assert len(await client("records", run)) == 400


async def test_writes_wait_for_a_node_that_starts(
    either: Callable[..., Either], tmp_path: Path
) -> None:
    port = free_port()
    async with either(f"http://127.0.0.1:{port}") as client:
        append = asyncio.create_task(client("append", "r", record(1)))
        swap = asyncio.create_task(client("compare_and_swap", "r", "k", None, b"x"))
        await asyncio.sleep(0.2)
        with node(tmp_path / "data", token=TOKEN, port=port):
            await asyncio.gather(append, swap)
            assert len(await client("records", "r")) == 1


def test_the_examples_of_the_guide(
    nodes: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHIDORI_RUN_STORE", nodes.one.url)
    monkeypatch.setenv("CHIDORI_RUN_STORE_TOKEN", TOKEN)
    # The guide's run is not that of another test.
    text = GUIDE.read_text().replace("run-1", "run-of-the-guide")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(examples) == text.count("```") // 2 == 4
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(GUIDE), "exec"), names)
    assert capsys.readouterr().out == "1\n2\n"
