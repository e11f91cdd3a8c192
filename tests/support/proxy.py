"""A network that fails on demand: an HTTP proxy in a process of its own, before an S3 server.

    python -m tests.support.proxy --listen PORT --upstream HOST:PORT --control PORT [--delay-ms N]

Bytes pass unchanged, so signatures stay valid as long as clients are given the proxy's address.
The control port answers `GET /` with the counts, `POST /` sets faults (a JSON object with any of
`Faults`), `DELETE /` sets the counts to zero.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random  # noqa: TID251
from typing import Any

import httpx
import uvloop

from tests.support.processes import Process, free_port

_HEAD_LIMIT = 1024 * 1024
_CHUNK = 256 * 1024
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:\s*(\d+)")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding:[^\r]*chunked")
_CLOSE = re.compile(rb"(?i)\r\nconnection:\s*close")
_UNAVAILABLE = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s"
)
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>injected</Message></Error>"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclasses.dataclass
class Faults:
    """What the network does. Fractions are of the calls that `only` matches."""

    # Added to each call before it is passed on.
    delay_ms: float = 0.0
    # Connections are closed, new ones as soon as they are made.
    cut: bool = False
    # Nothing is passed on and nothing answered; connections stay open.
    blackhole: bool = False
    # Answered 503 without asking the server.
    unavailable: float = 0.0
    # The server answers, and the connection is closed instead of passing that on.
    lose_answer: float = 0.0
    # The start of "METHOD kind", such as "PUT meta" or "PUT"; empty for all calls.
    only: str = ""


def kind(method: str, target: str) -> str:
    """What a call is about: meta, state, list, delete or other."""
    path, _, query = target.partition("?")
    if method == "DELETE" or (method == "POST" and re.search(r"(^|&)delete($|[=&])", query)):
        return "delete"
    if method == "GET" and "list-type=" in query:
        return "list"
    return next((name for name in ("meta", "state") if f"/{name}/" in path), "other")


class Network:
    """The proxy itself. `requests` counts by method and kind."""

    def __init__(self, host: str, port: int, faults: Faults) -> None:
        self.faults = faults
        self.upstream = (host, port)
        self._rng = Random(0)
        self._open: set[asyncio.StreamWriter] = set()
        self._lit = asyncio.Event()
        self.set(faults)
        self.reset()

    def set(self, faults: Faults) -> None:
        self.faults = faults
        if faults.blackhole:
            self._lit.clear()
        else:
            self._lit.set()
        if faults.cut:
            for writer in self._open:
                writer.transport.abort()

    def reset(self) -> None:
        self.requests: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.up = self.down = 0

    def counts(self) -> dict[str, Any]:
        return {
            "requests": dict(self.requests),
            "injected": dict(self.injected),
            "bytes_up": self.up,
            "bytes_down": self.down,
            "connections": len(self._open),
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        connection = _Connection(self, reader, writer)
        self._open.add(writer)
        try:
            while not self.faults.cut and await connection.call():
                pass
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._open.discard(writer)
            connection.close()

    async def passable(self) -> bool:
        """Whether the network is whole; while it is dark, waits, and then it is not."""
        if self._lit.is_set():
            return not self.faults.cut
        await self._lit.wait()
        return False

    def strikes(self, fraction: float, name: str) -> bool:
        return name.startswith(self.faults.only) and self._rng.random() < fraction


class _Connection:
    """A client's connection, with one to the server that is made for its first call."""

    def __init__(
        self, network: Network, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._network = network
        self._reader = reader
        self._writer = writer
        self._server: Streams | None = None

    def close(self) -> None:
        self._writer.close()
        if self._server is not None:
            self._server[1].close()

    async def call(self) -> bool:
        """Pass one call on; whether the connection can carry another."""
        network = self._network
        head = await self._reader.readuntil(b"\r\n\r\n")
        method, target, _ = head[: head.index(b"\r\n")].decode("latin-1").split(" ")
        name = f"{method} {kind(method, target)}"
        network.requests[name] += 1
        if not await network.passable():
            return False
        if network.faults.delay_ms:
            await asyncio.sleep(network.faults.delay_ms / 1000)
            if not await network.passable():
                return False
        waits = b"100-continue" in head.lower()
        if network.strikes(network.faults.unavailable, name):
            network.injected["unavailable"] += 1
            if not waits:
                await _copy_body(head, self._reader, None)
            self._writer.write(_UNAVAILABLE % (len(_SLOW_DOWN), _SLOW_DOWN))
            return not waits
        lose = network.strikes(network.faults.lose_answer, name)

        if self._server is not None and self._server[0].at_eof():
            self._server[1].close()
            self._server = None
        if self._server is None:
            self._server = await asyncio.open_connection(*network.upstream, limit=_HEAD_LIMIT)
        self._server[1].write(head)
        length = _LENGTH.search(head)
        if not waits and (length is None or int(length[1]) <= _CHUNK):
            await self._send(head, self._server[1])
            return await self._answer(method, self._server[0], lose) and not _CLOSE.search(head)
        # The server may have something to say before all has been sent.
        sending = asyncio.ensure_future(self._send(head, self._server[1]))
        try:
            whole = await self._answer(method, self._server[0], lose)
            # An answer may overtake the end of the copying, or refuse what is still to come.
            await asyncio.wait({sending}, timeout=0.1)
            return whole and sending.done() and not _CLOSE.search(head)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
                await sending

    async def _send(self, head: bytes, server: asyncio.StreamWriter) -> None:
        copied = await _copy_body(head, self._reader, server)
        self._network.up += copied

    async def _answer(self, method: str, server: asyncio.StreamReader, lose: bool) -> bool:
        """Pass an answer on; whether the connections can go on to be used."""
        while True:
            head = await server.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            if status >= 200:
                break
            self._writer.write(head)
        if not await self._network.passable():
            return False
        if lose:
            self._network.injected["lost"] += 1
            return False
        self._writer.write(head)
        if method == "HEAD" or status in {204, 304}:
            return True
        framed = bool(_LENGTH.search(head) or _CHUNKED.search(head))
        copied = await _copy_body(head, server, self._writer, to_the_end=not framed)
        self._network.down += copied
        return framed and not _CLOSE.search(head)


async def _copy_body(
    head: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter | None,
    *,
    to_the_end: bool = False,
) -> int:
    """Copy the body that follows a head, framed as it is (None: to nowhere); its bytes."""
    if to_the_end:
        return await _copy(sys.maxsize, reader, writer)
    if not _CHUNKED.search(head):
        length = _LENGTH.search(head)
        return await _copy(int(length[1]) if length else 0, reader, writer)
    total = 0
    while True:
        line = await reader.readuntil(b"\r\n")
        if writer is not None:
            writer.write(line)
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            break
        # The line's end after a chunk belongs to the framing.
        total += await _copy(size + 2, reader, writer) - 2
    while line != b"\r\n":
        line = await reader.readuntil(b"\r\n")
        if writer is not None:
            writer.write(line)
    return total


async def _copy(
    size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None
) -> int:
    left = size
    while left:
        data = await reader.read(min(left, _CHUNK))
        if not data and size != sys.maxsize:
            raise asyncio.IncompleteReadError(b"", left)
        if not data:
            break
        left -= len(data)
        if writer is not None:
            writer.write(data)
            await writer.drain()
    return size - left


async def _control(
    network: Network, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if head.startswith(b"POST"):
            network.set(dataclasses.replace(network.faults, **json.loads(body)))
        counts = json.dumps(network.counts()).encode()
        if head.startswith(b"DELETE"):
            network.reset()
        lines = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(counts)}\r\n\r\n"
        writer.write(lines.encode() + counts)
    writer.close()


async def _main(listen: int, upstream: str, control: int, delay_ms: float) -> None:
    host, _, port = upstream.rpartition(":")
    network = Network(host, int(port), Faults(delay_ms=delay_ms))
    place = "127.0.0.1"
    await asyncio.start_server(lambda r, w: _control(network, r, w), place, control)
    server = await asyncio.start_server(network.serve, place, listen, limit=_HEAD_LIMIT)
    await server.serve_forever()


class Proxy:
    """A running proxy, steered from a test."""

    def __init__(self, process: Process, control: int) -> None:
        self.process = process
        self.endpoint = process.url
        self._control = f"http://127.0.0.1:{control}/"

    def set(self, **faults: object) -> None:
        """Change some of the faults; the names are those of `Faults`."""
        httpx.post(self._control, json=faults).raise_for_status()

    def counts(self) -> dict[str, Any]:
        """What passed since the last reset; see `Network.counts`."""
        counts: dict[str, Any] = httpx.get(self._control).raise_for_status().json()
        return counts

    def reset(self) -> dict[str, Any]:
        """Set the counts to zero; what they were."""
        counts: dict[str, Any] = httpx.delete(self._control).raise_for_status().json()
        return counts


@contextlib.contextmanager
def proxy(upstream: str, output: Path, delay_ms: float = 0.0) -> Iterator[Proxy]:
    """A proxy before the server at `upstream` (HOST:PORT or a URL), killed at the end."""
    listen, control = free_port(), free_port()
    command = [sys.executable, "-m", "tests.support.proxy", "--listen", str(listen)]
    command += ["--upstream", upstream.removeprefix("http://"), "--control", str(control)]
    process = Process([*command, "--delay-ms", str(delay_ms)], listen, output)
    try:
        yield Proxy(process.ready(), control)
    finally:
        process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    given = parser.parse_args()
    uvloop.run(_main(given.listen, given.upstream, given.control, given.delay_ms))
