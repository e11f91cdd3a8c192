"""A server inside of the test, which knows whether anybody is still connected."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open, and logs nothing."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one segment an answer: two would wait for a delayed acknowledgement

    def body(self) -> bytes:
        """The whole body. Raises ConnectionError when its sender was killed amid it."""
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionResetError("the sender is gone")
        return body

    def write(self, content: bytes) -> None:
        # Who asked may have been killed meanwhile.
        with contextlib.suppress(OSError):
            self.wfile.write(content)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Listener(ThreadingHTTPServer):
    """Serves each connection in a thread, on a free port."""

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._lock = Lock()
        self._open = 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def quiet(self) -> bool:
        """Whether all that was sent has been dealt with, and every sender is gone."""
        with self._lock:
            return self._open == 0

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self._open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A killed process ends its connections in any way.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def listening(handler: type[Handler]) -> Iterator[Listener]:
    """A listener that serves until the end."""
    with Listener(handler) as listener:
        Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield listener
        finally:
            listener.shutdown()
