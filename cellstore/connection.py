"""One client's connection: uvicorn's HTTP protocol, with the time limits it does not have.

A client may keep the node waiting for a while in each request, and a little longer for every
64 KiB it moves: while it sends nothing after connecting, sends its head or body, or takes its
answer. One that keeps it waiting longer is cut off. Time the node takes for itself does not count.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

MAX_HEAD = 64 * 1024
_SECONDS_PER_BYTE = 1 / (64 * 1024)

_TOO_SLOW = b"the request came too slowly"
_HEAD_TOO_LARGE = b"the head of the request is too large"


class _Cork:
    """Joins the head of an answer to the first piece of its body.

    uvicorn writes them apart, and each write is a system call and a packet of its own. Not for
    answers to HEAD, which have no body to wait for.
    """

    __slots__ = ("_connection", "_cycle", "_head", "is_closing")

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle: RequestResponseCycle | None = cycle
        self._head: bytes | None = None
        self.is_closing = connection.transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is not None:
            data, self._head = self._head + data, None
        elif self._cycle is not None and self._cycle.response_started:
            self._head, self._cycle = data, None
            return
        self._connection.moved += len(data)
        self._connection.transport.write(data)

    def close(self) -> None:
        if self._head is not None:
            self._connection.transport.write(self._head)
            self._head = None
        self._connection.transport.close()


class Connection(HttpToolsProtocol):
    """A connection that `sweep` cuts off when its client is too slow."""

    patience = 30.0
    max_connections = 1000

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = False
        self._head_size = 0
        # Bytes to and from the client in this request, and how long it kept the node waiting.
        self.moved = 0
        self._waited = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            # Descriptors are kept for cells; without them nobody could be served.
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self.moved += len(data)
        if self._in_head:
            self._head_size += len(data)
        super().data_received(data)
        if self._in_head and self._head_size > MAX_HEAD:
            self._refuse(b"431 Request Header Fields Too Large", _HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_size = 0
        if not self._answering():
            self.moved = 0
            self._waited = 0.0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            return
        # A trailer, which nobody asked for.
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD:
            self._refuse(b"431 Request Header Fields Too Large", _HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        cycle = self.cycle
        if self.parser.should_upgrade():
            # It is not, and the parser cannot go on after the head.
            cycle.keep_alive = False
        if cycle.scope["method"] != "HEAD":
            # The cycle has been made, but its task has not run yet.
            cycle.transport = cast("asyncio.Transport", _Cork(self, cycle))

    def send_400_response(self, msg: str) -> None:
        if self._answering():
            self.transport.close()
        else:
            super().send_400_response(msg)

    def sweep(self, seconds: float) -> None:
        """Note that `seconds` have passed since the last sweep."""
        if not (self.transport.is_closing() or self._waits_for_client()):
            return
        self._waited += seconds
        taken = max(0, self.moved - self._untaken())
        if self._waited <= self.patience + taken * _SECONDS_PER_BYTE:
            return
        if self.transport.is_closing() or self.flow.write_paused:
            self.transport.abort()
        else:
            self._refuse(b"408 Request Timeout", _TOO_SLOW)

    def _waits_for_client(self) -> bool:
        if self._in_head or self.flow.write_paused:
            return True
        cycle = self._newest()
        if cycle is None or cycle.response_complete:
            # Between requests the keep-alive timer runs, unless stray bytes stopped it.
            return self.timeout_keep_alive_task is None
        return cycle.more_body and not self.flow.read_paused and not cycle.waiting_for_100_continue

    def _untaken(self) -> int:
        """Bytes of answers that the client's machine has not acknowledged yet."""
        connection = self.transport.get_extra_info("socket")
        try:
            queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, ValueError):
            # It has been closed under us, and there is nobody left to take anything.
            return 0
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _newest(self) -> RequestResponseCycle | None:
        """The newest request on this connection; there is none before the first."""
        return self.cycle

    def _answering(self) -> bool:
        cycle = self._newest()
        return cycle is not None and not cycle.response_complete

    def _refuse(self, status: bytes, text: bytes) -> None:
        cycle = self._newest()
        # Not into the middle of an answer, nor before the answer to an earlier request.
        earlier = self.pipeline or (self._in_head and self._answering())
        if not (earlier or (cycle is not None and cycle.response_started)):
            self.transport.write(
                b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(text), text)
            )
        if cycle is not None and not self._in_head:
            # What was refused shall not be done, though it may come to its end in these very bytes.
            cycle.disconnected = True
        self.transport.close()


def connections(state: ServerState) -> list[Connection]:
    """The connections that are open."""
    return cast("list[Connection]", list(state.connections))
