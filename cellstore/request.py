"""One HTTP request as the API sees it: its headers, its body, and the memory it holds."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from cellstore.conditions import Condition, parse_condition
from cellstore.errors import BadRequest, BodyTooLarge
from cellstore.memory import UNCOUNTED, MemoryBudget


class Request:
    """A request being answered. `release` must be called when its answer has been sent."""

    __slots__ = ("_budget", "_held", "_max_body", "_receive", "headers", "scope")

    def __init__(self, scope: Scope, receive: Receive, budget: MemoryBudget, max_body: int) -> None:
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._budget = budget
        self._max_body = max_body
        self._held = 0

    async def body(self, copies: int) -> bytes:
        """Read the body whole, holding memory for it and `copies` more of it until `release`.

        Raises BodyTooLarge (before reading, where the length is told), Unavailable, and
        ClientDisconnect when the client goes away first.
        """
        if (
            b"upgrade" in self.headers
            and b"upgrade" in self.headers.get(b"connection", b"").lower()
        ):
            # The parser takes what follows the head for another protocol.
            raise BadRequest("connections are not upgraded here; send bodies without `Upgrade`")
        length = self._content_length()
        if length is not None:
            await self.hold(length * (1 + copies))
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body: bytes = message["body"]
        size = len(body)
        parts = [body]
        while message["more_body"]:
            if length is None and size > UNCOUNTED and not self._held:
                # The length is not told, so room is taken for the most it may be.
                await self.hold(self._max_body * (1 + copies))
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            size += len(message["body"])
            if size > self._max_body:
                raise self._too_large(f"over {size - 1}")
            parts.append(message["body"])
        if length is not None and size != length:
            raise BadRequest(f"the body has {size} bytes where Content-Length tells {length}")
        return b"".join(parts) if len(parts) > 1 else body

    async def hold(self, size: int) -> None:
        """Hold memory for `size` bytes in place of what is held. Raises Unavailable."""
        self.release()
        await self._budget.take(size)
        self._held = size

    def release(self) -> None:
        """Give back the memory held."""
        if self._held:
            held, self._held = self._held, 0
            self._budget.give(held)

    def condition(self) -> Condition | None:
        """The precondition of a write. Lists may be spread over repeated headers."""
        if b"if-match" not in self.headers and b"if-none-match" not in self.headers:
            return None
        return parse_condition(self._joined(b"if-match"), self._joined(b"if-none-match"))

    def accepts_gzip(self) -> bool:
        """Whether the answer may be compressed, and so be sent in chunks, without a length."""
        if self.scope["http_version"] == "1.0":
            return False
        for coding in self.headers.get(b"accept-encoding", b"").split(b","):
            name, _, weight = coding.partition(b";")
            if name.strip().lower() == b"gzip":
                return weight.replace(b" ", b"").rstrip(b"0.") != b"q="
        return False

    def _content_length(self) -> int | None:
        if b"transfer-encoding" in self.headers:
            return None
        told = self.headers.get(b"content-length", b"0")
        if not (told.isdigit() and len(told) < 20):
            raise BadRequest("Content-Length is not a number of bytes")
        length = int(told)
        if length > self._max_body:
            raise self._too_large(str(length))
        return length

    def _too_large(self, size: str) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body has {size} bytes and this node accepts {self._max_body}; "
            "send less, or raise --max-body-mib"
        )

    def _joined(self, header: bytes) -> bytes | None:
        values = [value for name, value in self.scope["headers"] if name == header]
        return b", ".join(values) if values else None
