"""An HTTP server that answers as a test tells it to, wrongly where that is the point."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple


class Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


# Bytes to send; empty ones close the connection, None keeps it waiting for ever.
Answering = Callable[[Request], bytes | None]


def answer(status: int, body: str = "", date: str = "", **headers: str) -> bytes:
    """A whole HTTP answer."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [f"Date: {date}"] if date else []
    return "\r\n".join([*lines, "", body]).encode()


def error(status: int, code: str, message: str = "") -> bytes:
    """An error as S3 tells it."""
    return answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>")


class Scripted:
    """What came in, and the address."""

    def __init__(self, answering: Answering) -> None:
        self.requests: list[Request] = []
        self.endpoint = ""
        self._answering = answering
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await _read(reader, writer)
                self.requests.append(request)
                data = self._answering(request)
                if data is None:
                    continue
                if not data:
                    break
                writer.write(data)
                head, _, body = data.partition(b"\r\n\r\n")
                length = f"Content-Length: {len(body)}".encode()
                if not any(word in head for word in (length, b"chunked", b" 204 ")):
                    await writer.drain()
                    break
        writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if headers.get("expect"):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, target, headers, body)


@contextlib.asynccontextmanager
async def scripted(answering: Answering) -> AsyncIterator[Scripted]:
    """A server on a free port, until the end of the context."""
    scripted = Scripted(answering)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
        scripted.close()
        await server.wait_closed()
