"""The bound on the bytes that requests in flight hold in memory, for the whole node."""

from __future__ import annotations

import asyncio
from collections import deque

from cellstore.errors import Unavailable

# What is held without being counted: the server buffers this much of every request anyway.
UNCOUNTED = 64 * 1024

# Requests up to this size have a share of their own, so that they never wait for larger ones.
SMALL = 1024 * 1024


class MemoryBudget:
    """Bytes that may be held at once. Who asks for more than is left waits, in order of coming.

    A request takes what it needs in one go and gives it back whole, so two can never wait for
    each other. One that needs more than a whole share gets that share alone.
    """

    def __init__(self, total: int, patience: float) -> None:
        self._small = _Share(total // 8, patience)
        self._large = _Share(total - total // 8, patience)

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._small.held + self._large.held

    async def take(self, size: int) -> None:
        """Hold `size` bytes until `give`. Raises Unavailable after `patience` seconds."""
        if size > UNCOUNTED:
            await self._share(size).take(size)

    def give(self, size: int) -> None:
        """Give back what a `take` of the same size holds."""
        if size > UNCOUNTED:
            self._share(size).give(size)

    def _share(self, size: int) -> _Share:
        return self._small if size <= SMALL else self._large


class _Share:
    def __init__(self, total: int, patience: float) -> None:
        self._total = total
        self._patience = patience
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        size = min(size, self._total)
        if not self._waiting and self.held + size <= self._total:
            self.held += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await asyncio.wait_for(asyncio.shield(turn), self._patience)
        except BaseException as reason:
            if turn.done():
                self.held -= size
            else:
                self._waiting.remove((size, turn))
            self._admit()
            if isinstance(reason, TimeoutError):
                raise Unavailable(
                    "too many large requests are in flight; "
                    "send it again, or raise --max-memory-mib"
                ) from None
            raise

    def give(self, size: int) -> None:
        self.held -= min(size, self._total)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.held + self._waiting[0][0] <= self._total:
            size, turn = self._waiting.popleft()
            self.held += size
            turn.set_result(None)
