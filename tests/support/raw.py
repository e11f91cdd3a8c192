"""A bare socket, for clients that do not behave."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit


class Raw:
    """A connection that sends bytes as they are and tells when the server closes it."""

    def __init__(self, url: str, receive_buffer: int | None = None) -> None:
        parts = urlsplit(url)
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        self.socket.connect((parts.hostname, parts.port))

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *reason: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Raw:
        self.socket.sendall(data)
        return self

    def head(self) -> bytes:
        """Receive up to the end of an answer's head; what follows it is returned too."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.socket.recv(65536)
            if not piece:
                break
            data += piece
        return data

    def until_closed(self) -> bytes:
        """Receive everything until the server closes the connection."""
        data = b""
        while True:
            try:
                piece = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return data
            if not piece:
                return data
            data += piece

    def seconds_until_closed(self) -> float:
        """How long the server keeps the connection from now on."""
        start = time.monotonic()  # noqa: TID251
        self.until_closed()
        return time.monotonic() - start  # noqa: TID251


def head(method: str, path: str, *headers: str) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: node", *headers, "", ""]
    return "\r\n".join(lines).encode()
