"""One client's connection: uvicorn's HTTP protocol, with the time limits it does not have.

A client may keep the node waiting for a while in each request, and a little longer for every
64 KiB it moves: while it sends nothing after connecting, sends its head or body, or takes its
answer. One that keeps it waiting longer is cut off. Time the node takes for itself does not count.
"""

from __future__ import annotations

import asyncio
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

    uvicorn writes them apart, and each write is a system call and a packet of its own.
    """

    __slots__ = ("_cycle", "_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle: RequestResponseCycle | None = cycle
        self._head: bytes | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is not None:
            data, self._head = self._head + data, None
        elif self._cycle is not None and self._cycle.response_started:
            self._head, self._cycle = data, None
            return
        self._transport.write(data)

    def flush(self) -> None:
        if self._head is not None:
            self._transport.write(self._head)
            self._head = None

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Connection(HttpToolsProtocol):
    """A connection that `sweep` cuts off when its client is too slow."""

    patience = 30.0

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = False
        self._moved = 0
        self._waited = 0.0

    def data_received(self, data: bytes) -> None:
        self._moved += len(data)
        super().data_received(data)
        if self._in_head and self._moved > MAX_HEAD:
            self._refuse(b"431 Request Header Fields Too Large", _HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._moved = 0
        self._waited = 0.0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        # The cycle has been made, but its task has not run yet.
        self.cycle.transport = cast("asyncio.Transport", _Cork(self.transport, self.cycle))

    def on_response_complete(self) -> None:
        cast("_Cork", self.cycle.transport).flush()
        super().on_response_complete()

    def resume_writing(self) -> None:
        # The client took a buffer's worth of its answer.
        self._moved += 64 * 1024
        super().resume_writing()

    def sweep(self, seconds: float) -> None:
        """Note that `seconds` have passed since the last sweep."""
        if self.transport.is_closing():
            # Closing waits for the client to take what is buffered.
            self._waited += seconds
            if self._waited > self.patience:
                self.transport.abort()
            return
        if not self._waits_for_client():
            return
        self._waited += seconds
        if self._waited <= self.patience + self._moved * _SECONDS_PER_BYTE:
            return
        cycle = self._cycle()
        if self.flow.write_paused or (cycle is not None and cycle.response_started):
            self.transport.abort()
        else:
            self._refuse(b"408 Request Timeout", _TOO_SLOW)

    def _waits_for_client(self) -> bool:
        if self._in_head or self.flow.write_paused:
            return True
        cycle = self._cycle()
        if cycle is None or cycle.response_complete:
            # Between requests the keep-alive timer runs, unless stray bytes stopped it.
            return self.timeout_keep_alive_task is None
        return cycle.more_body and not self.flow.read_paused and not cycle.waiting_for_100_continue

    def _cycle(self) -> RequestResponseCycle | None:
        """The newest request on this connection; there is none before the first."""
        return self.cycle

    def _refuse(self, status: bytes, text: bytes) -> None:
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(text), text)
        )
        self.transport.close()


def connections(state: ServerState) -> list[Connection]:
    """The connections that are open."""
    return cast("list[Connection]", list(state.connections))
