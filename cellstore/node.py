"""The node: which cells exist here, which are open, and the way to each.

A cell is closed, opening, open or closing. Opening, creating and closing are moves: at most one
move of a cell is under way, in a task of its own, and requests that find one wait for it to end
and look again. Different cells never wait for each other, except for room when
`max_open_cells` are open and all of them are busy.
"""

from __future__ import annotations

import asyncio
import sqlite3
from bisect import insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from cellstore import schema
from cellstore.cell import Cell
from cellstore.clock import Clock
from cellstore.database import OpenDatabase, connect_immutable, connect_new
from cellstore.directory import DATABASE, FIRST_TERM, REGISTRY, DataDirectory
from cellstore.errors import CellBroken, DiskFull, Unavailable
from cellstore.faults import translate
from cellstore.operations import CREATES, Operation
from cellstore.schema import Counters
from cellstore.transactions import Failure, run_batch

T = TypeVar("T")

log = structlog.get_logger("cellstore.node")

# How long a request waits for room before it is told to come again; clients give it 30 s.
ROOM_WAIT = 20.0


# Runs blocking work where it does not hold up the loop.
Offload = Callable[..., Awaitable[Any]]


class Node:
    """The cells of one data directory."""

    def __init__(
        self,
        directory: DataDirectory,
        open_database: OpenDatabase,
        offload: Offload,
        clock: Clock,
        *,
        idle_secs: float,
        max_open_cells: int,
    ) -> None:
        self._directory = directory
        self._open_database = open_database
        self._offload = offload
        self._clock = clock
        self._idle_secs = idle_secs
        self._max_open_cells = max_open_cells
        self._terms: dict[str, int] = {}
        self._sorted: list[str] = []
        # Least recently used first.
        self._open: OrderedDict[str, Cell] = OrderedDict()
        self._moves: dict[str, asyncio.Task[Any]] = {}
        # Cells that hold descriptors: open ones, and those being opened or closed.
        self._held = 0
        self._room = asyncio.Event()
        self._broken: dict[str, str] = {}
        # Whether the last write found no room on the disk; one log line tells each change.
        self._full = False

    async def start(self) -> None:
        """Learn which cells are here, from names alone."""
        self._terms = await self._offload(self._scan)
        self._sorted = sorted(self._terms.keys() - {REGISTRY})

    def _scan(self) -> dict[str, int]:
        terms: dict[str, int] = {}
        for name, term in self._directory.copies():
            terms[name] = max(term, terms.get(name, 0))
        return terms

    def runs(self) -> list[str]:
        """The ids of all runs here, sorted."""
        return self._sorted

    def open_cells(self) -> list[tuple[str, int]]:
        """The open cells of runs and their terms; waits for nothing."""
        return [(name, self._terms[name]) for name in self._open if name != REGISTRY]

    def broken_cells(self) -> dict[str, str]:
        """The cells that could not be read when last asked for, and why."""
        return self._broken

    async def perform(self, name: str, operation: Operation) -> Any:
        """Do `operation` on a cell, opening or creating it as needed, and return its outcome.

        Raises what the operation's error means: DiskFull, CellBroken, Unavailable.
        """
        cell = self._open.get(name)
        if cell is None:
            return await self._reach(name, operation)
        self._open.move_to_end(name)
        return await self._outcome(cell, operation, cell.perform(operation))

    async def _reach(self, name: str, operation: Operation) -> Any:
        """As `perform`, for a cell that was not open."""
        while name not in self._open:
            move = self._moves.get(name)
            if move is not None:
                await asyncio.wait([move])
                if not move.cancelled() and isinstance(move.exception(), Unavailable):
                    # It has waited long enough for all who waited with it.
                    raise Unavailable(str(move.exception()))
            elif name in self._terms:
                cell, outcome = await self._move(name, self._bring_up(name, operation))
                return outcome if cell is None else await self._outcome(cell, operation, outcome)
            elif operation.absent is CREATES:
                return await self._move(name, self._create(name, operation))
            else:
                return operation.absent
        return await self.perform(name, operation)

    async def _outcome(self, cell: Cell, operation: Operation, pending: asyncio.Future[Any]) -> Any:
        cell.last_used = self._clock.monotonic()
        try:
            outcome = await pending
        except CellBroken as fault:
            self._give_up(cell, fault)
            raise
        except DiskFull:
            self._note_full(cell.name)
            raise
        finally:
            self._room.set()
        if self._full and operation.statements:
            self._full = False
            log.info("disk has room again", cell=cell.name)
        return outcome

    def _note_full(self, name: str) -> None:
        if not self._full:
            self._full = True
            log.error("disk full, writes are refused", cell=name)

    async def _move(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Run one move of a cell in a task of its own; its end is seen by all who wait for it."""
        task = asyncio.create_task(work)
        self._moves[name] = task
        task.add_done_callback(partial(self._moved, name))
        # A client that goes away does not stop a move half way.
        return await asyncio.shield(task)

    def _moved(self, name: str, task: asyncio.Task[Any]) -> None:
        if self._moves.get(name) is task:
            del self._moves[name]
        if not task.cancelled():
            # Those who started the move have this error; nobody may be left to take it.
            task.exception()

    async def _bring_up(self, name: str, operation: Operation) -> tuple[Cell | None, Any]:
        """Open a cell and give it its first operation, before anybody can close it for room.

        Returns the cell and the pending outcome; or, where a full disk keeps it from being
        opened, no cell and the outcome of a read that needed none.
        """
        await self._take_room()
        term = self._terms[name]
        path = self._directory.copy(name, term) / DATABASE
        database = None
        try:
            database = await self._open_database(path)
            cell = await Cell.open(name, database, self._directory.shortage)
        except Exception as error:  # noqa: BLE001 - raised again, translated
            if database is not None:
                await database.close()
            self._give_room()
            fault = await self._offload(translate, error, name, self._directory.shortage)
            if isinstance(fault, DiskFull):
                self._note_full(name)
                return None, await self._offload(self._read_closed, path, name, operation, fault)
            if isinstance(fault, CellBroken):
                self._list_broken(name, fault)
            raise fault from None
        self._open[name] = cell
        if self._broken.pop(name, None) is not None:
            log.info("cell readable again", cell=name)
        log.info("cell opened", cell=name, term=term)
        return cell, cell.perform(operation)

    def _read_closed(self, path: Path, name: str, operation: Operation, full: Exception) -> Any:
        """Serve a read of a cell that a full disk keeps from being opened.

        SQLite makes files beside a database to open it, even to read. A cleanly closed one, which
        has no log beside it, can be read without. Raises `full` for everything else.
        """
        log_file = path.with_name(path.name + "-wal")
        if operation.statements or (log_file.exists() and log_file.stat().st_size > 0):
            raise full
        connection = connect_immutable(path)
        try:
            return operation.apply(connection, Counters())
        except sqlite3.Error as error:
            raise translate(error, name, self._directory.shortage) from None
        finally:
            connection.close()

    async def _create(self, name: str, operation: Operation) -> Any:
        """Make a cell together with its first write: neither is ever there without the other."""
        await self._take_room()
        try:
            outcome = await self._offload(self._build, name, operation)
        except DiskFull:
            self._note_full(name)
            raise
        finally:
            self._give_room()
        self._terms[name] = FIRST_TERM
        if name != REGISTRY:
            insort(self._sorted, name)
        log.info("cell created", cell=name, term=FIRST_TERM)
        return outcome

    def _build(self, name: str, operation: Operation) -> Any:
        staging = self._directory.stage()
        try:
            outcome = _write_first(staging / DATABASE, operation)
            self._directory.publish(staging, name, FIRST_TERM)
        except BaseException as error:
            self._directory.discard(staging)
            if isinstance(error, Exception):
                raise translate(error, name, self._directory.shortage) from None
            raise
        return outcome

    def _give_up(self, cell: Cell, fault: CellBroken) -> None:
        """Close a cell that turned out to be unreadable; the next request tries it afresh."""
        self._list_broken(cell.name, fault)
        if self._open.get(cell.name) is cell:
            self._start_closing(cell)

    def _list_broken(self, name: str, fault: CellBroken) -> None:
        if self._broken.get(name) != fault.message:
            log.error("cell broken", cell=name, fault=fault.message)
        self._broken[name] = fault.message

    # Room: at most `max_open_cells` hold descriptors at once.

    async def _take_room(self) -> None:
        try:
            async with asyncio.timeout(ROOM_WAIT):
                while self._held >= self._max_open_cells:
                    victim = next((cell for cell in self._open.values() if not cell.busy), None)
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

    def _give_room(self) -> None:
        self._held -= 1
        self._room.set()

    def _start_closing(self, cell: Cell) -> asyncio.Task[None]:
        del self._open[cell.name]
        task = asyncio.create_task(self._close(cell))
        self._moves[cell.name] = task
        task.add_done_callback(partial(self._moved, cell.name))
        return task

    async def _close(self, cell: Cell) -> None:
        try:
            await cell.close()
        except sqlite3.Error as error:
            # What was committed is in the log beside the database and is read from there.
            log.warning("cell not checkpointed", cell=cell.name, fault=str(error))
        else:
            log.info("cell hibernated", cell=cell.name)
        finally:
            self._give_room()

    async def hibernate_idle(self) -> int:
        """Close the cells that nobody used for `idle_secs`. Returns how many there were."""
        now = self._clock.monotonic()
        idle = []
        for cell in self._open.values():
            if cell.last_used + self._idle_secs > now:
                break
            if not cell.busy:
                idle.append(cell)
        for cell in idle:
            if not cell.busy and self._open.get(cell.name) is cell:
                await asyncio.wait([self._start_closing(cell)])
        return len(idle)

    async def close(self) -> None:
        """Finish what is under way, then checkpoint and close every cell."""
        while self._open or self._moves:
            for cell in list(self._open.values()):
                self._start_closing(cell)
            await asyncio.wait(list(self._moves.values()))
            await asyncio.sleep(0)


def _write_first(path: Path, operation: Operation) -> Any:
    """Make a cell's tables and its first rows, in a file that nobody else knows yet."""
    connection = connect_new(path)
    try:
        schema.create(connection)
        (outcome,) = run_batch(connection, [operation], Counters())
    finally:
        connection.close()
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome
