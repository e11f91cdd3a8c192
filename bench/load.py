"""The load generator, a process of its own: `python -m bench.load`, told what to do by its parent.

Each line of its input is a job: a port, and for every connection the work to do before the clock
starts and the work to measure. Each line of its output is what was measured, or what went wrong.
Requests are built before they are needed and answers are counted, not kept: its own time must not
hide the server's.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any, cast

import uvloop

from bench.requests import Work

_END_OF_HEAD = b"\r\n\r\n"
# Compressed bytes look like this at the very end of a packet once in 2^56 times.
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection: sends a request, waits for the whole answer, sends the next."""

    def __init__(self) -> None:
        self.received = 0
        self._transport: asyncio.Transport
        self._requests: Iterator[bytes] = iter(())
        self._latencies: list[float] = []
        self._done: asyncio.Future[list[float]]
        self._sent = 0.0
        self._head = b""
        # Bytes of the answer still to come; None in its head, or where chunks tell its end.
        self._left: int | None = None
        self._chunked = False

    def send(self, requests: Iterable[bytes]) -> asyncio.Future[list[float]]:
        """Send requests one after another; the future brings the seconds that each took."""
        self._requests = iter(requests)
        self._latencies = []
        self._done = asyncio.get_running_loop().create_future()
        self._next()
        return self._done

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self._left is not None:
            self._left -= len(data)
        elif self._chunked:
            self._head = (self._head + data)[-len(_END_OF_CHUNKS) :]
        else:
            self._head += data
            end = self._head.find(_END_OF_HEAD)
            if end < 0:
                return
            try:
                self._begin(self._head[:end].lower(), len(self._head) - end - len(_END_OF_HEAD))
            except RuntimeError as fault:
                self._done.set_exception(fault)
                return
        if self._left == 0 or (self._chunked and self._head.endswith(_END_OF_CHUNKS)):
            self._latencies.append(perf_counter() - self._sent)
            self._next()

    def _begin(self, head: bytes, arrived: int) -> None:
        if not head.startswith(b"http/1.1 2"):
            raise RuntimeError(f"the server answered {self._head[:500]!r}")
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            self._left = int(head[at + 17 :].split(b"\r\n", 1)[0]) - arrived
        elif b"\r\ntransfer-encoding: chunked" in head:
            self._chunked = True
        else:
            raise RuntimeError(f"the answer does not tell its end: {head!r}")

    def _next(self) -> None:
        self._head = b""
        self._left = None
        self._chunked = False
        request = next(self._requests, None)
        if request is None:
            self._done.set_result(self._latencies)
            return
        self._sent = perf_counter()
        self._transport.write(request)


async def perform(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job. Every connection ends its preparation before any begins what is measured."""
    loop = asyncio.get_running_loop()
    before = [_requests(each["before"]) for each in job["connections"]]
    measured = [_requests(each["measured"]) for each in job["connections"]]
    connections = [
        (await loop.create_connection(Connection, "127.0.0.1", job["port"]))[1] for _ in measured
    ]
    try:
        await _send(connections, before)
        for connection in connections:
            connection.received = 0
        started = perf_counter()
        latencies = await _send(connections, measured)
        return {
            "seconds": perf_counter() - started,
            "latencies": [latency for each in latencies for latency in each],
            "received": sum(connection.received for connection in connections),
        }
    finally:
        for connection in connections:
            connection.close()


def _requests(work: list[list[Any]]) -> list[bytes]:
    return [request for each in work for request in Work(*each).requests()]


async def _send(connections: list[Connection], requests: list[list[bytes]]) -> list[list[float]]:
    pairs = zip(connections, requests, strict=True)
    return await asyncio.gather(*(connection.send(each) for connection, each in pairs))


def main() -> None:
    # A collection in the middle of a request would count as the server's time.
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            try:
                answer = runner.run(perform(json.loads(line)))
            except (RuntimeError, OSError) as fault:
                answer = {"error": str(fault)}
            print(json.dumps(answer), flush=True)
            gc.collect()


if __name__ == "__main__":
    main()
