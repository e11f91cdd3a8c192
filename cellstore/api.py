"""The run-store protocol over HTTP: from a raw path to an operation on a cell, and back.

Paths are split before they are decoded (`a%2Fb` is one blob key, not another route), and the
token is checked before anything else is looked at. See docs/api.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cellstore import answers
from cellstore.auth import Tokens
from cellstore.cell import Cell
from cellstore.directory import REGISTRY
from cellstore.errors import (
    CellstoreError,
    MethodNotAllowed,
    NotFound,
    OwnershipUnknown,
    PreconditionFailed,
    Unauthorized,
    Unavailable,
)
from cellstore.index import RunIndex
from cellstore.memory import MemoryBudget
from cellstore.names import blob_key, component, is_lease
from cellstore.node import Node
from cellstore.operations import (
    Append,
    DeleteBlob,
    ListBlobs,
    Oversize,
    PutBlob,
    ReadBlob,
    ReadRecords,
    Replace,
)
from cellstore.records import check_entry, parse_journal, parse_record
from cellstore.registry import Registry
from cellstore.request import Request

log = structlog.get_logger("cellstore.api")

# Reads up to this many bytes are served at once; for longer ones memory is taken first.
_SMALL_READ = 256 * 1024

_BYTES_PER_RECORD = 300

# Shorter bodies are parsed on the loop: a thread would cost more than it saves.
_PARSE_ON_LOOP = 64 * 1024

T = TypeVar("T")

Handler = Callable[[Request, tuple[str, ...]], Awaitable[Response]]


class Route(NamedTuple):
    """What a path leads to: the name of a resource, and the names in the path, decoded."""

    resource: str
    names: tuple[str, ...]


class Api:
    """The ASGI application."""

    def __init__(
        self,
        node: Node,
        runs: RunIndex,
        registry: Registry,
        tokens: Tokens,
        budget: MemoryBudget,
        *,
        max_body: int,
        node_id: str,
        version: str,
        bucket: bool = False,
        orphans: Callable[[], list[str]] = list,
    ) -> None:
        self._node = node
        self._runs = runs
        self._registry = registry
        self._tokens = tokens
        self._budget = budget
        self._max_body = max_body
        self._node_id = node_id
        self._version = version
        self._bucket = bucket
        self._orphans = orphans
        self.ready = False
        self._resources: dict[str, dict[str, Handler]] = {
            "status": {"GET": self._status},
            "runs": {"GET": self._list_runs},
            "records": {
                "GET": self._read_records,
                "POST": self._append_record,
                "PUT": self._replace_records,
            },
            "blobs": {"GET": self._list_blobs},
            "blob": {"GET": self._read_blob, "PUT": self._put_blob, "DELETE": self._delete_blob},
            "registry": {"GET": self._list_registry},
            "entry": {"GET": self._read_entry, "PUT": self._put_entry},
        }
        for handlers in self._resources.values():
            handlers["HEAD"] = handlers["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, self._budget, self._max_body)
        try:
            answer = await self._answer(request)
            await answer(scope, receive, send)
        except ClientDisconnect:
            # What it had sent whole is done; there is nobody to tell.
            return
        finally:
            request.release()

    async def _answer(self, request: Request) -> Response:
        path: bytes = request.scope["raw_path"]
        if path in (b"/healthz", b"/readyz"):
            return self._health(request.scope["method"], path)
        lease = False
        try:
            if not self._tokens.allow(request.headers.get(b"authorization")):
                raise Unauthorized("unauthorized")
            resource, names = resolve(path)
            lease = resource == "blob" and is_lease(names[1])
            handlers = self._resources[resource]
            handler = handlers.get(request.scope["method"])
            if handler is None:
                raise MethodNotAllowed(", ".join(sorted(handlers)))
            return await handler(request, names)
        except CellstoreError as error:
            if isinstance(error, Unavailable):
                log.warning("request turned away", reason=error.message)
            if error.status >= 500 and lease:
                return answers.error_answer(_stand_down(error))
            return answers.error_answer(error)
        except ClientDisconnect:
            raise
        except asyncio.CancelledError:
            # The time for stopping is over. What was asked for may still be done.
            stopping = Unavailable("the node is stopping; send it again")
            return answers.error_answer(_stand_down(stopping) if lease else stopping)
        except Exception:
            log.exception("request failed", method=request.scope["method"])
            internal = CellstoreError("internal error; the node's log says more")
            return answers.error_answer(_stand_down(internal) if lease else internal)

    def _health(self, method: str, path: bytes) -> Response:
        if method not in ("GET", "HEAD"):
            return answers.error_answer(MethodNotAllowed("GET, HEAD"))
        return answers.OK if path == b"/healthz" or self.ready else answers.NOT_READY

    # The node

    async def _status(self, request: Request, names: tuple[str, ...]) -> Response:
        status: dict[str, Any] = {
            "node": self._node_id,
            "version": self._version,
            "bucket": self._bucket,
            "cells": [
                _cell_status(cell) for cell in self._node.open_cells() if cell.name != REGISTRY
            ],
            "runs": len(self._runs),
            "orphans": self._orphans(),
            "broken": [
                {"cell": name, "fault": fault}
                for name, fault in sorted(self._node.broken_cells().items())
            ],
            "memory_held": self._budget.held,
        }
        return answers.json_answer(status, request.accepts_gzip())

    async def _list_runs(self, request: Request, names: tuple[str, ...]) -> Response:
        return answers.json_answer(self._runs.all(), request.accepts_gzip())

    # Records

    async def _read_records(self, request: Request, names: tuple[str, ...]) -> Response:
        chunks = await self._read(
            request, lambda limit: self._node.perform(names[0], ReadRecords(limit))
        )
        if chunks is None:
            return answers.NO_JOURNAL
        return answers.content(answers.JSON, chunks, request.accepts_gzip())

    async def _append_record(self, request: Request, names: tuple[str, ...]) -> Response:
        record = await _parsed(parse_record, await request.body(copies=1))
        await self._node.perform(names[0], Append(record))
        return answers.OK

    async def _replace_records(self, request: Request, names: tuple[str, ...]) -> Response:
        body = await request.body(copies=2)
        # A record is small objects beside its text, which outweigh it where it is short.
        await request.hold(len(body) * 3 + body.count(b'"seq"') * _BYTES_PER_RECORD)
        records = await _parsed(parse_journal, body)
        await self._node.perform(names[0], Replace(records))
        return answers.OK

    # Blobs

    async def _list_blobs(self, request: Request, names: tuple[str, ...]) -> Response:
        keys = await self._node.perform(names[0], ListBlobs())
        return answers.json_answer(keys, request.accepts_gzip())

    async def _read_blob(self, request: Request, names: tuple[str, ...]) -> Response:
        run, key = names
        blob = await self._read(
            request, lambda limit: self._node.perform(run, ReadBlob(key, limit))
        )
        if blob is None:
            return answers.NOT_FOUND
        tag = {"etag": f'"{blob.tag}"'}
        return answers.content(answers.BYTES, [blob.data], request.accepts_gzip(), tag)

    async def _put_blob(self, request: Request, names: tuple[str, ...]) -> Response:
        run, key = names
        data = await request.body(copies=1)
        if not await self._node.perform(run, PutBlob(key, data, request.condition())):
            raise PreconditionFailed
        return answers.OK

    async def _delete_blob(self, request: Request, names: tuple[str, ...]) -> Response:
        run, key = names
        if not await self._node.perform(run, DeleteBlob(key, request.condition())):
            raise PreconditionFailed
        return answers.OK

    # The registry

    async def _list_registry(self, request: Request, names: tuple[str, ...]) -> Response:
        chunks = await self._read(request, self._registry.entries)
        return answers.content(answers.JSON, chunks, request.accepts_gzip())

    async def _read_entry(self, request: Request, names: tuple[str, ...]) -> Response:
        entry = await self._read(request, lambda limit: self._registry.get(names[0], limit))
        if entry is None:
            return answers.NOT_FOUND
        return answers.content(answers.JSON, [entry.data], request.accepts_gzip())

    async def _put_entry(self, request: Request, names: tuple[str, ...]) -> Response:
        text = await _parsed(check_entry, await request.body(copies=1))
        await self._registry.put(names[0], text)
        return answers.OK

    async def _read(self, request: Request, read: Callable[[int], Awaitable[Any]]) -> Any:
        """Read something whose size is not known, taking memory for it before it is brought in.

        `read` is given how many bytes it may bring in, and returns Oversize where that is too few.
        """
        limit = _SMALL_READ
        while True:
            await request.hold(limit)
            outcome = await read(limit)
            if not isinstance(outcome, Oversize):
                return outcome
            # Other requests may make it longer before it is read again.
            limit = outcome.size + outcome.size // 8


def resolve(path: bytes) -> Route:
    """Find what a raw path leads to. Raises NotFound, or BadRequest for a bad id, name or key."""
    parts = path.split(b"/", 4)
    match parts[1:]:
        case [b"runs", run, b"records"]:
            return Route("records", (component(run, "run id"),))
        case [b"runs", run, b"blobs", key] if key:
            return Route("blob", (component(run, "run id"), blob_key(key)))
        case [b"runs", run, b"blobs"]:
            return Route("blobs", (component(run, "run id"),))
        case [b"runs"]:
            return Route("runs", ())
        case [b"status"]:
            return Route("status", ())
        case [b"registry"]:
            return Route("registry", ())
        case [b"registry", name]:
            return Route("entry", (component(name, "registry name"),))
    raise NotFound("not found")


def _cell_status(cell: Cell) -> dict[str, Any]:
    tenure = cell.tenure
    if tenure is None:
        return {"cell": cell.name, "epoch": 1, "lease_expires_at": None, "replicated": False}
    return {
        "cell": cell.name,
        "epoch": tenure.record.epoch,
        "lease_expires_at": tenure.record.lease_expires_at,
        "replicated": not tenure.dirty,
        "holds": tenure.holds(),
        "lag_secs": round(tenure.lag(), 3),
        "unpublished": cell.revision - tenure.record.rev,
    }


def _stand_down(error: CellstoreError) -> OwnershipUnknown:
    """A client goes on without its lease after any other error; 409 makes it stand down."""
    return OwnershipUnknown(f"the lease cannot be decided: {error.message}")


async def _parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    if len(body) <= _PARSE_ON_LOOP:
        return parse(body)
    return await asyncio.to_thread(parse, body)
