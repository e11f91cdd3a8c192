"""The node: which cells are open, and the way to each.

A cell is closed, opening, open or closing. Opening, creating and closing are moves: at most one
move of a cell is under way, in a task of its own, and requests that find one wait for it to end
and look again. Different cells never wait for each other, except for room when
`max_open_cells` are open and all of them are busy.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import structlog

from cellstore.alone import PENDING, Opener
from cellstore.cell import Cell
from cellstore.clock import Clock
from cellstore.errors import CellBroken, DiskFull, OwnedElsewhere, Unavailable
from cellstore.operations import Operation
from cellstore.tenure import Fenced

T = TypeVar("T")

log = structlog.get_logger("cellstore.node")

# How long a request waits for what may soon be had before it is told to come again; clients give
# it 30 s and do not retry.
PATIENCE = 20.0

# Less than that, so that those who wait are told what is lacking.
ROOM_WAIT = 19.0


class Node:
    """The cells of one node."""

    def __init__(
        self, opener: Opener, clock: Clock, *, idle_secs: float, max_open_cells: int
    ) -> None:
        self._opener = opener
        self._clock = clock
        self._idle_secs = idle_secs
        self._max_open_cells = max_open_cells
        # Least recently used first.
        self._open: OrderedDict[str, Cell] = OrderedDict()
        self._moves: dict[str, asyncio.Task[Any]] = {}
        # Cells that hold descriptors: open ones, and those being opened or closed.
        self._held = 0
        self._room = asyncio.Event()
        self._broken: dict[str, str] = {}
        # Whether the last write found no room on the disk; one log line tells each change.
        self._full = False

    def open_cells(self) -> list[Cell]:
        """The open cells; waits for nothing."""
        return list(self._open.values())

    def broken_cells(self) -> dict[str, str]:
        """The cells that could not be read when last asked for, and why."""
        return self._broken

    async def perform(self, name: str, operation: Operation) -> Any:
        """Do `operation` on a cell, opening or creating it as needed, and return its outcome.

        Raises what the operation's error means: DiskFull, CellBroken, Unavailable, OwnedElsewhere.
        """
        cell = self._open.get(name)
        deadline = self._clock.monotonic() + PATIENCE
        if cell is not None:
            self._open.move_to_end(name)
            try:
                return await self._serve(cell, operation, deadline)
            except Fenced:
                # Nothing has happened here; whoever has it now is asked, or it is claimed again.
                pass
        return await self._reach(name, operation, deadline)

    async def _reach(self, name: str, operation: Operation, deadline: float) -> Any:
        """As `perform`, for a cell that was not open."""
        while True:
            if self._clock.monotonic() > deadline:
                raise Unavailable(f"cell `{name}` does not come to rest; send it again")
            cell = self._open.get(name)
            try:
                if cell is not None:
                    self._open.move_to_end(name)
                    return await self._serve(cell, operation, deadline)
                move = self._moves.get(name)
                if move is not None:
                    await self._wait_for(name, move, deadline)
                    continue
                async with _Ticket(self.look_for_room) as ticket:
                    move = self._move(name, self._bring_up(name, operation, ticket))
                    cell, outcome = await self._within(name, move, deadline)
                    if cell is None or outcome is not PENDING:
                        return outcome
                    return await self._serve(cell, operation, deadline)
            except Fenced:
                await asyncio.sleep(0)

    async def _serve(self, cell: Cell, operation: Operation, deadline: float) -> Any:
        cell.last_used = self._clock.monotonic()
        tenure = cell.tenure
        cell.users += 1
        try:
            if tenure is not None and not tenure.admits(operation):
                await tenure.admit(operation, deadline)
                if self._open.get(cell.name) is not cell:
                    raise Fenced
            done = await cell.perform(operation)
            if tenure is not None:
                tenure.committed(done)
                if not tenure.answers(done):
                    await tenure.answer(done, deadline)
        except CellBroken as fault:
            self._give_up(cell, fault)
            raise
        except DiskFull:
            self._note_full(cell.name)
            raise
        finally:
            cell.leave()
            self._room.set()
        if self._full and operation.statements:
            self._full = False
            log.info("disk has room again", cell=cell.name)
        return done.outcome

    def _note_full(self, name: str) -> None:
        if not self._full:
            self._full = True
            log.error("disk full, writes are refused", cell=name)

    # Moves

    def _move(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run one move of a cell in a task of its own; its end is seen by all who wait for it."""
        task = asyncio.create_task(work)
        self._moves[name] = task
        task.add_done_callback(partial(self._moved, name))
        return task

    def _moved(self, name: str, task: asyncio.Task[Any]) -> None:
        if self._moves.get(name) is task:
            del self._moves[name]
        if not task.cancelled():
            # Those who started the move have this error; nobody may be left to take it.
            task.exception()

    async def _within(self, name: str, move: asyncio.Task[T], deadline: float) -> T:
        """The result of a move that goes on if the client goes away or the deadline passes."""
        left = deadline - self._clock.monotonic()
        done, _ = await asyncio.wait([move], timeout=max(0.0, left))
        if not done:
            raise Unavailable(f"cell `{name}` takes long to be brought up; send it again")
        return move.result()

    async def _wait_for(self, name: str, move: asyncio.Task[Any], deadline: float) -> None:
        """Wait for another's move. A refusal that it met is one for all who waited with it."""
        left = deadline - self._clock.monotonic()
        done, _ = await asyncio.wait([move], timeout=max(0.0, left))
        if not done:
            raise Unavailable(f"cell `{name}` takes long to be brought up; send it again")
        if move.cancelled():
            return
        fault = move.exception()
        if isinstance(fault, Unavailable):
            raise Unavailable(str(fault))
        if isinstance(fault, OwnedElsewhere):
            raise fault.again()

    async def _bring_up(
        self, name: str, operation: Operation, ticket: _Ticket
    ) -> tuple[Cell | None, Any]:
        """Bring a cell up; whoever holds the ticket uses it before anybody can close it for room.

        Returns the cell and PENDING, or the operation's outcome.
        """
        try:
            cell, outcome = await self._opener.bring_up(name, operation, _Room(self), ticket.valid)
        except DiskFull:
            self._note_full(name)
            raise
        except CellBroken as fault:
            self._list_broken(name, fault)
            raise
        if cell is None:
            return None, outcome
        self._open[name] = cell
        cell.last_used = self._clock.monotonic()
        ticket.take(cell)
        if self._broken.pop(name, None) is not None:
            log.info("cell readable again", cell=name)
        log.info("cell opened", cell=name)
        return cell, outcome

    def _give_up(self, cell: Cell, fault: CellBroken) -> None:
        """Close a cell that turned out to be unreadable; the next request tries it afresh."""
        self._list_broken(cell.name, fault)
        self.put_down(cell)

    def _list_broken(self, name: str, fault: CellBroken) -> None:
        if self._broken.get(name) != fault.message:
            log.error("cell broken", cell=name, fault=fault.message)
        self._broken[name] = fault.message

    # Room: at most `max_open_cells` hold descriptors at once.

    async def take_room(self) -> None:
        """Hold the descriptors of one more cell, closing another if need be."""
        try:
            async with asyncio.timeout(ROOM_WAIT):
                while self._held >= self._max_open_cells:
                    victim = next((cell for cell in self._open.values() if not cell.kept), None)
                    if victim is not None:
                        await asyncio.wait([self._start_closing(victim)])
                    else:
                        self._room.clear()
                        await self._room.wait()
        except TimeoutError:
            raise Unavailable(
                f"all {self._max_open_cells} cells that may be open are busy; "
                "send it again, or raise --max-open-cells"
            ) from None
        self._held += 1

    def give_room(self) -> None:
        """Give the descriptors of one cell back."""
        self._held -= 1
        self._room.set()

    def look_for_room(self) -> None:
        """Let those who wait for room look again: a cell may have become closable."""
        self._room.set()

    # Closing

    def put_down(self, cell: Cell) -> None:
        """Start closing a cell, if it is open: its hold is over, or it cannot be read."""
        if self._open.get(cell.name) is cell:
            self._start_closing(cell)

    def _start_closing(self, cell: Cell) -> asyncio.Task[None]:
        del self._open[cell.name]
        return self._move(cell.name, self._close(cell))

    async def _close(self, cell: Cell) -> None:
        try:
            await self._opener.put_down(cell)
        except sqlite3.Error as error:
            # What was committed is in the log beside the database and is read from there.
            log.warning("cell not checkpointed", cell=cell.name, fault=str(error))
        except Exception:
            log.exception("cell not closed in order", cell=cell.name)
        else:
            log.info("cell hibernated", cell=cell.name)
        finally:
            self.give_room()

    async def with_closed(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Do `work` on a cell while it is closed and stays so. False where it is in use."""
        if name in self._open or name in self._moves:
            return False
        await asyncio.wait([self._move(name, work())])
        return True

    async def hibernate_idle(self) -> int:
        """Close the cells that nobody used for `idle_secs`. Returns how many there were."""
        now = self._clock.monotonic()
        idle = []
        for cell in self._open.values():
            if cell.last_used + self._idle_secs > now:
                break
            if not cell.kept:
                idle.append(cell)
        for cell in idle:
            if not cell.kept and self._open.get(cell.name) is cell:
                await asyncio.wait([self._start_closing(cell)])
        return len(idle)

    def break_off(self) -> None:
        """Give up all moves under way; those that have a cell open close it."""
        for move in self._moves.values():
            move.cancel()

    async def close(self) -> None:
        """Finish what is under way, then checkpoint and close every cell."""
        while self._open or self._moves:
            for cell in list(self._open.values()):
                self._start_closing(cell)
            await asyncio.wait(list(self._moves.values()))
            await asyncio.sleep(0)


class _Room:
    """The room of a node, as those who open cells see it."""

    def __init__(self, node: Node) -> None:
        self.take = node.take_room
        self.give = node.give_room


class _Ticket:
    """Stands for a request that waits for a cell to be brought up, as long as it does.

    What nobody waits for any more is not executed: its client was told to send it again, and may
    have done so elsewhere.
    """

    def __init__(self, given_back: Callable[[], None]) -> None:
        self._given_back = given_back
        self._waits = True
        self._cell: Cell | None = None

    async def __aenter__(self) -> _Ticket:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._waits = False
        if self._cell is not None:
            self._cell.leave()
            # Its cell may be closed now for those who wait for room.
            self._given_back()

    def valid(self) -> bool:
        return self._waits

    def take(self, cell: Cell) -> None:
        """Keep the cell open until the request has used it."""
        if self._waits:
            self._cell = cell
            cell.users += 1
