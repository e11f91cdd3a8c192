"""The answers of the API: the usual few made once, large ones sent in pieces, errors as text."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Sequence

import orjson
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from cellstore.errors import (
    BodyTooLarge,
    CellstoreError,
    MethodNotAllowed,
    OwnedElsewhere,
    OwnershipUnknown,
    Unauthorized,
    Unavailable,
)

JSON = "application/json"
BYTES = "application/octet-stream"

OK = PlainTextResponse("ok")
NOT_FOUND = PlainTextResponse("not found", 404)
NO_JOURNAL = PlainTextResponse("no journal", 404)
NOT_READY = PlainTextResponse("not ready", 503)

# Answers shorter than this are not worth compressing.
COMPRESS_FROM = 16 * 1024

# The server keeps what is written until the client takes it: a piece at a time is enough.
_PIECE = 256 * 1024


def json_answer(value: object, gzip: bool) -> Response:
    """An answer holding `value` as JSON."""
    return content(JSON, [orjson.dumps(value)], gzip)


def content(
    media_type: str, chunks: Sequence[bytes], gzip: bool, headers: dict[str, str] | None = None
) -> Response:
    """An answer of joined chunks, compressed if it is long and the client accepts it."""
    size = sum(map(len, chunks))
    if size < COMPRESS_FROM:
        return Response(b"".join(chunks), media_type=media_type, headers=headers)
    return LongAnswer(media_type, chunks, size, gzip, headers or {})


class LongAnswer(Response):
    """An answer that is sent in pieces, waiting for the client to take each."""

    def __init__(
        self,
        media_type: str,
        chunks: Sequence[bytes],
        size: int,
        gzip: bool,
        headers: dict[str, str],
    ) -> None:
        coding = {"content-encoding": "gzip"} if gzip else {"content-length": str(size)}
        super().__init__(
            media_type=media_type, headers=headers | coding | {"vary": "accept-encoding"}
        )
        if gzip:
            del self.headers["content-length"]
        self._chunks = chunks
        self._gzip = gzip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        if scope["method"] != "HEAD":
            # Level 1: most of the gain for a tenth of the time.
            packer = zlib.compressobj(1, zlib.DEFLATED, 31) if self._gzip else None
            for piece in _pieces(self._chunks):
                body = await asyncio.to_thread(packer.compress, piece) if packer else piece
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if packer is not None:
                tail = await asyncio.to_thread(packer.flush)
                await send({"type": "http.response.body", "body": tail, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _pieces(chunks: Sequence[bytes]) -> Iterator[bytes | memoryview]:
    for chunk in chunks:
        if len(chunk) <= 2 * _PIECE:
            yield chunk
        else:
            view = memoryview(chunk)
            for start in range(0, len(chunk), _PIECE):
                yield view[start : start + _PIECE]


def error_answer(error: CellstoreError) -> Response:
    """The answer that says what `error` says."""
    if isinstance(error, OwnershipUnknown):
        body = {"error": error.message, "owner": "unknown"}
        return Response(orjson.dumps(body), error.status, media_type=JSON)
    if isinstance(error, OwnedElsewhere):
        told = {"error": error.message, "owner": error.owner}
        if error.lease_expires_at is not None:
            told["lease_expires_at"] = error.lease_expires_at
        if error.owner_url is not None:
            told["owner_url"] = error.owner_url
        return Response(orjson.dumps(told), error.status, media_type=JSON)
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allow
    elif isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(error, Unavailable):
        headers["retry-after"] = str(error.retry_after)
    elif isinstance(error, BodyTooLarge):
        # The rest of the body is not read, so the connection cannot go on.
        headers["connection"] = "close"
    return PlainTextResponse(error.message, error.status, headers)
