"""Bringing up cells where there is no bucket: what lies on the disk is the cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from cellstore.cell import Cell
from cellstore.copies import Copies
from cellstore.directory import FIRST_TERM, REGISTRY
from cellstore.errors import DiskFull, Unavailable
from cellstore.operations import CREATES, Operation

log = structlog.get_logger("cellstore.node")

# The operation that a cell was brought up for has not been performed.
PENDING: Final = object()


class Room(Protocol):
    """A bound on the cells that hold descriptors."""

    async def take(self) -> None:
        """Wait for room for one more. Raises Unavailable."""

    def give(self) -> None:
        """Give the room of one back."""


class Opener(Protocol):
    """How a cell that is not open is brought up for its first operation."""

    async def bring_up(
        self, name: str, operation: Operation, room: Room, wanted: Callable[[], bool]
    ) -> tuple[Cell | None, Any]:
        """Open or create a cell. Returns it and PENDING, or the operation's outcome.

        There is no cell where it was not opened. Takes room for a cell that it returns. The
        operation is executed only while it is `wanted`.
        """

    async def put_down(self, cell: Cell) -> None:
        """Close a cell that `bring_up` opened and that nobody uses."""


class Alone:
    """Brings up the cells of the local disk."""

    def __init__(self, copies: Copies, changed: Callable[[str], None]) -> None:
        self._copies = copies
        # Told of each run that is created.
        self._changed = changed

    async def bring_up(
        self, name: str, operation: Operation, room: Room, wanted: Callable[[], bool]
    ) -> tuple[Cell | None, Any]:
        """See Opener."""
        copies = self._copies
        if name not in copies.terms:
            if operation.absent is not CREATES:
                return None, operation.absent
            await room.take()
            try:
                if not wanted():
                    raise Unavailable(f"cell `{name}`: nobody waits for it any more")
                outcome = await copies.offload(self._create, name, operation)
            finally:
                room.give()
            if name != REGISTRY:
                self._changed(name)
            return None, outcome
        await room.take()
        try:
            return await copies.open(name), PENDING
        except DiskFull as full:
            room.give()
            return None, await copies.offload(copies.read_closed, name, operation, full)
        except BaseException:
            room.give()
            raise

    def _create(self, name: str, operation: Operation) -> Any:
        staging, outcome = self._copies.build(name, operation)
        self._copies.publish(staging, name, None)
        self._copies.terms[name] = FIRST_TERM
        log.info("cell created", cell=name, term=FIRST_TERM)
        return outcome

    async def put_down(self, cell: Cell) -> None:
        """See Opener."""
        await cell.close()
