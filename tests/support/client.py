"""A client that sends exactly what it is told: raw paths, odd headers, broken bodies."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection to a server, opened anew when the server has closed it."""

    def __init__(
        self, url: str, token: str | None = None, timeout: float = 30.0, *, retry: bool = True
    ) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
        self._token = token
        self._retry = retry

    def request(
        self,
        method: str,
        path: str,
        body: bytes | str | list[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; a list as body goes in chunks, without Content-Length."""
        sent = dict(headers or {})
        if self._token is not None:
            sent.setdefault("Authorization", f"Bearer {self._token}")
        if isinstance(body, str):
            body = body.encode()
        chunked = isinstance(body, list)
        if chunked:
            sent["Transfer-Encoding"] = "chunked"
        used_before = self._connection.sock is not None
        try:
            return self._exchange(method, path, body, sent, chunked)
        except ConnectionError:
            # The server may have closed a connection that it had promised to keep.
            if not (used_before and self._retry):
                raise
            return self._exchange(method, path, body, sent, chunked)

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | list[bytes] | None,
        headers: dict[str, str],
        chunked: bool,
    ) -> Answer:
        try:
            self._connection.request(method, path, body, headers, encode_chunked=chunked)
            response = self._connection.getresponse()
            answer = Answer(response.status, response.headers, response.read())
        except BaseException:
            self._connection.close()
            raise
        if response.will_close:
            self._connection.close()
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=named(headers))

    def put(self, path: str, body: bytes | str, **headers: str) -> Answer:
        return self.request("PUT", path, body, named(headers))

    def post(self, path: str, body: bytes | str) -> Answer:
        return self.request("POST", path, body)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.request("DELETE", path, headers=named(headers))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


def named(headers: Mapping[str, str]) -> dict[str, str]:
    """Keyword names as header names: `if_match` is `if-match`."""
    return {name.replace("_", "-"): value for name, value in headers.items()}


def record(seq: int, **more: object) -> str:
    """A record such as the runtime writes."""
    return json.dumps(
        {
            "seq": seq,
            "function": "tool",
            "args": {"name": "charge", "input": {"cents": seq * 100}},
            "result": {"receipt": f"r-{seq}"},
            "duration_ms": 3,
            "timestamp": "2026-11-30T14:00:30.123456Z",
        }
        | more
    )
