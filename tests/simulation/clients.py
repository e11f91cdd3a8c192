"""What clients do in a run: they append, swap, replace, read, and ask elsewhere when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random  # noqa: TID251
from typing import Any

from cellstore.conditions import MUST_BE_ABSENT, Condition, Match, digest
from cellstore.operations import (
    Append,
    DeleteBlob,
    ListBlobs,
    PutBlob,
    ReadBlob,
    ReadRecords,
    Replace,
)
from cellstore.records import Record
from tests.simulation.history import History
from tests.simulation.process import Process, Reply

LIMIT = 1 << 30

# Clients give each request this long.
PATIENCE = 30.0

_WORKS = ("append", "swap", "read", "blob", "put", "delete", "replace", "rewrite", "list")
_WEIGHTS = (6.0, 5.0, 3.0, 1.5, 1.0, 1.0, 0.5, 0.5, 0.3)

LEASE = "lease.json"


class Client:
    """One client. `processes` gives the nodes that can be reached now."""

    def __init__(
        self,
        name: str,
        cells: list[str],
        processes: Callable[[], list[Process]],
        history: History,
        rng: Random,
        payload: int,
    ) -> None:
        self.name = name
        self._cells = cells
        self._processes = processes
        self._history = history
        self._rng = rng
        self._payload = payload
        self.favourite: dict[str, str] = {}
        self._numbers = 0

    async def run(self, until: Callable[[], bool], think: float) -> None:
        rng = self._rng
        while not until():
            await asyncio.sleep(rng.expovariate(1 / think))
            if until():
                return
            cell = rng.choice(self._cells)
            (work,) = rng.choices(_WORKS, _WEIGHTS)
            await getattr(self, f"_{work}")(cell)

    def _fresh(self) -> str:
        self._numbers += 1
        return f"{self.name}-{self._numbers}"

    def _text(self, fresh: str) -> bytes:
        rng = self._rng
        length = rng.randrange(self._payload) if rng.random() < 0.5 else 4
        return f'{{"by":"{fresh}","pad":"{rng.randbytes(length // 2).hex()}"}}'.encode()

    def _seq(self) -> int:
        return int(self.name[1:]) * 1000 + self._numbers

    async def _append(self, cell: str) -> None:
        fresh = self._fresh()
        operation = Append(Record(self._seq(), self._text(fresh)))
        for attempt in range(3):
            reply = await self.ask(f"{fresh}.{attempt}", cell, operation)
            if reply.kind == "done" or self._rng.random() < 0.5:
                return

    async def _swap(self, cell: str) -> None:
        fresh = self._fresh()
        read = await self.ask(f"{fresh}.r", cell, ReadBlob(LEASE, LIMIT))
        if read.kind != "done":
            return
        condition = MUST_BE_ABSENT
        if read.value is not None:
            condition = Condition((Match(frozenset({digest(read.value.data)})),))
        if self._rng.random() < 0.2:
            await asyncio.sleep(self._rng.random() * 3)
        await self.ask(f"{fresh}.w", cell, PutBlob(LEASE, self._text(fresh), condition))

    async def _read(self, cell: str) -> None:
        await self.ask(self._fresh(), cell, ReadRecords(LIMIT))

    async def _blob(self, cell: str) -> None:
        await self.ask(self._fresh(), cell, ReadBlob(f"k{self._rng.randrange(3)}", LIMIT))

    async def _put(self, cell: str) -> None:
        fresh = self._fresh()
        await self.ask(fresh, cell, PutBlob(f"k{self._rng.randrange(3)}", self._text(fresh)))

    async def _delete(self, cell: str) -> None:
        await self.ask(self._fresh(), cell, DeleteBlob(f"k{self._rng.randrange(3)}"))

    async def _replace(self, cell: str) -> None:
        fresh = self._fresh()
        count = self._rng.randrange(3)
        records = [Record(self._seq() + 500 + n, self._text(fresh)) for n in range(count)]
        await self.ask(fresh, cell, Replace(records))

    async def _rewrite(self, cell: str) -> None:
        """Write another text under a seq that there may be."""
        seq = int(self.name[1:]) * 1000 + self._rng.randrange(self._numbers + 1)
        fresh = self._fresh()
        await self.ask(fresh, cell, Append(Record(seq, self._text(fresh))))

    async def _list(self, cell: str) -> None:
        await self.ask(self._fresh(), cell, ListBlobs())

    async def ask(self, label: str, cell: str, operation: Any, node: str | None = None) -> Reply:
        """Send a request to a node, and once more to the one that it names."""
        rng = self._rng
        reply = Reply("unknown")
        for hop in range(2):
            nodes = {process.node_name: process for process in self._processes()}
            if not nodes:
                return Reply("unreachable")
            chosen = node or self.favourite.get(cell)
            if chosen not in nodes or (node is None and rng.random() < 0.25):
                chosen = rng.choice(sorted(nodes))
            process = nodes[chosen]
            await asyncio.sleep(rng.random() * 0.01)
            if not process.ready:
                return Reply("unreachable")
            attempt = self._history.ask(f"{label}/{hop}", cell, operation, process)
            future = process.ask(attempt)
            await asyncio.wait([future], timeout=PATIENCE)
            if not future.done():
                return Reply("unknown")
            await asyncio.sleep(rng.random() * 0.01)
            reply = future.result()
            if reply.kind == "done":
                self.favourite[cell] = chosen
            if reply.kind != "elsewhere":
                return reply
            node = reply.value
            if node not in nodes:
                return reply
        return reply
