"""uvicorn, serving the API on a socket until it is told to stop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from cellstore.connection import Connection, connections
from cellstore.errors import StartRefused
from cellstore.settings import Settings, affordable_connections

BACKLOG = 1024

# uvloop accepts one connection from a listening socket in each round of its loop. While rounds are
# long those who come new would wait for seconds; each duplicate of the socket accepts one more.
_ACCEPTORS = 16


def bind(settings: Settings) -> socket.socket:
    """Take the address of the settings, to be listened on later. Raises StartRefused.

    Nobody can connect before the node is ready to serve.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as fault:
        raise StartRefused(f"--listen {settings.listen}: {fault.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as fault:
        listener.close()
        raise StartRefused(f"--listen {settings.listen}: {fault.strerror}") from None
    return listener


def acceptors(listener: socket.socket) -> list[socket.socket]:
    """The sockets to serve on so that many connections are accepted at once; `listener` is one."""
    return [listener, *(listener.dup() for _ in range(_ACCEPTORS - 1))]


class Server(uvicorn.Server):
    """uvicorn's server; signals are left to the one who runs it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        limits = {
            "patience": settings.client_timeout_secs,
            "max_connections": affordable_connections(),
        }
        protocol = type("NodeConnection", (Connection,), limits)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_secs,
                timeout_graceful_shutdown=settings.drain_secs,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def sweep(self, seconds: float) -> None:
        """Cut off clients that are too slow; `seconds` have passed since the last sweep."""
        for connection in connections(self.server_state):
            connection.sweep(seconds)
