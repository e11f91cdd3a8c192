"""A reverse proxy between the runtime and a node, which remembers what passed and what was said."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from urllib.parse import urlsplit

from tests.interop.listener import Handler, listening

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class Exchange:
    """A request, and the status of its answer: None when the node never answered."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int | None


class Relay:
    """What passed, in the order in which it was answered. `target` may change."""

    def __init__(self, target: str) -> None:
        self._lock = Lock()
        self._exchanges: list[Exchange] = []
        self.target = target
        self.url = ""
        self.quiet: Callable[[], bool] = lambda: True

    def add(self, exchange: Exchange) -> None:
        with self._lock:
            self._exchanges.append(exchange)

    def exchanges(self, suffix: str = "") -> list[Exchange]:
        """Those whose path ends so."""
        with self._lock:
            return [exchange for exchange in self._exchanges if exchange.path.endswith(suffix)]


@contextlib.contextmanager
def relay(target: str) -> Iterator[Relay]:
    """A relay to the node at `target`."""
    passed = Relay(target)

    class Forward(Handler):
        def forward(self) -> None:
            body = self.body()
            headers = {
                name.lower(): value
                for name, value in self.headers.items()
                if name.lower() not in _HOP_BY_HOP
            }
            # A connection for each request: one kept would be stale after the node's restart.
            upstream = http.client.HTTPConnection(urlsplit(passed.target).netloc, timeout=30)
            try:
                upstream.request(self.command, self.path, body or None, headers)
                answer = upstream.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                passed.add(Exchange(self.command, self.path, headers, body, None))
                # As a dead node does: no answer, and the connection ends.
                self.close_connection = True
                return
            finally:
                upstream.close()
            # Remembered before it is passed on: what the runtime has been told is always here.
            passed.add(Exchange(self.command, self.path, headers, body, answer.status))
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.end_headers()
            self.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = forward  # noqa: N815

    with listening(Forward) as listener:
        passed.url, passed.quiet = listener.url, listener.quiet
        yield passed
