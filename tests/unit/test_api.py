"""The API without a server: paths, and requests that the end of a stop cuts short."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from cellstore.api import Api, resolve
from cellstore.auth import NoTokens
from cellstore.errors import BadRequest, NotFound, OwnedElsewhere
from cellstore.index import RunIndex
from cellstore.memory import MemoryBudget
from cellstore.node import Node
from cellstore.registry import LocalRegistry


class NeverNode:
    """A node whose work never ends."""

    def open_cells(self) -> list[object]:
        return []

    def broken_cells(self) -> dict[str, str]:
        return {}

    async def perform(self, name: str, operation: object) -> object:
        return await asyncio.get_running_loop().create_future()


class StrangerNode:
    """A node whose runs are another's."""

    def __init__(self, expires: str | None, url: str | None) -> None:
        self._refusal = OwnedElsewhere("node-b", expires, url)

    async def perform(self, name: str, operation: object) -> object:
        raise self._refusal


class BuggyNode:
    """A node with a fault in its program."""

    async def perform(self, name: str, operation: object) -> object:
        raise RuntimeError("a bug")


Reply = tuple[int, dict[bytes, bytes], bytes]


async def put(node: object, path: str, *, cut_short: bool = False, method: str = "PUT") -> Reply:
    """Send a request, cancel it if asked to as the server does at the end of a stop."""
    budget = MemoryBudget(2**30, patience=1)
    api = Api(
        cast("Node", node),
        RunIndex(),
        LocalRegistry(cast("Node", node)),
        NoTokens(),
        budget,
        max_body=1000,
        node_id="n",
        version="0",
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "raw_path": path.encode(),
        "headers": [(b"content-length", b"2")],
        "http_version": "1.1",
    }
    task = asyncio.create_task(api(scope, receive, send))
    if cut_short:
        await asyncio.sleep(0)
        task.cancel()
    await task
    assert budget.held == 0
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


async def test_a_request_cut_short_is_told_to_come_again() -> None:
    status, headers, body = await put(NeverNode(), "/runs/a/blobs/k", cut_short=True)
    assert status == 503
    assert headers[b"retry-after"] == b"1"
    assert b"stopping" in body


async def test_a_lease_cut_short_makes_its_client_stand_down() -> None:
    path = "/runs/a/blobs/lease.json"
    status, _, body = await put(NeverNode(), path, cut_short=True)
    assert status == 409
    assert json.loads(body)["owner"] == "unknown"


async def test_a_bug_is_told_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    status, _, body = await put(BuggyNode(), "/runs/a/blobs/k")
    assert (status, body) == (500, b"internal error; the node's log says more")
    assert "a bug" in caplog.text
    status, _, body = await put(BuggyNode(), "/runs/a/blobs/lease.json")
    assert status == 409
    assert json.loads(body)["owner"] == "unknown"


async def test_the_status_waits_for_nothing() -> None:
    status, _, body = await put(NeverNode(), "/status", method="GET")
    assert status == 200
    assert json.loads(body)["cells"] == []


@pytest.mark.parametrize("path", ["/runs/a/records", "/runs/a/blobs/lease.json"])
async def test_a_run_of_another_names_its_owner(path: str) -> None:
    node = StrangerNode("2026-11-30T14:00:30.123456Z", "http://10.0.0.8:9700")
    status, _, body = await put(node, path, method="GET")
    assert status == 409
    assert json.loads(body) == {
        "error": "cell owned elsewhere",
        "owner": "node-b",
        "lease_expires_at": "2026-11-30T14:00:30.123456Z",
        "owner_url": "http://10.0.0.8:9700",
    }
    status, _, body = await put(StrangerNode(None, None), path, method="GET")
    assert (status, json.loads(body)) == (409, {"error": "cell owned elsewhere", "owner": "node-b"})


@pytest.mark.parametrize(
    ("path", "resource", "names"),
    [
        (b"/status", "status", ()),
        (b"/runs", "runs", ()),
        (b"/runs/a/records", "records", ("a",)),
        (b"/runs/%61/blobs", "blobs", ("a",)),
        (b"/runs/a/blobs/b", "blob", ("a", "b")),
        (b"/runs/a/blobs/b/c%2Fd/", "blob", ("a", "b/c/d/")),
        (b"/registry", "registry", ()),
        (b"/registry/a", "entry", ("a",)),
    ],
)
def test_paths(path: bytes, resource: str, names: tuple[str, ...]) -> None:
    assert resolve(path) == (resource, names)


@pytest.mark.parametrize("path", [b"/", b"", b"/runs/", b"/runs/a/blobs/", b"/status/x", b"/x"])
def test_paths_that_are_none(path: bytes) -> None:
    with pytest.raises(NotFound):
        resolve(path)


def test_a_bad_name_in_a_path() -> None:
    with pytest.raises(BadRequest, match="run id"):
        resolve(b"/runs//records")
