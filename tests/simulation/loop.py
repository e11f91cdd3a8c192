"""An event loop whose time is a number, and processes in it that can be killed and stopped.

Nothing here waits: when nothing is ready, the time is that of the next timer. What runs when
depends on nothing but what was asked for, so a run repeats exactly.

Each callback belongs to the life that made it, or to none: contexts are inherited by tasks, timers
and futures. The callbacks of a dead life are dropped, those of a stopped one are held back.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

# No run needs more.
MAX_STEPS = 100_000

_life: contextvars.ContextVar[Life] = contextvars.ContextVar("life")


class Killed(BaseException):
    """Raised in the middle of blocking work whose process has just died."""


class _Handle(Protocol):
    _context: contextvars.Context
    _cancelled: bool

    def _run(self) -> None: ...


class Life:
    """One run of one process. `fuse` counts down with each of its steps and burns at 0."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.dead = False
        self.stopped = False
        self.fuse: int | None = None
        self.burn: Callable[[], object] = lambda: None
        self.context = contextvars.Context()
        self.context.run(_life.set, self)
        # Kept, since a task that is collected while it is suspended runs its `finally` blocks.
        self.tasks: list[asyncio.Task[Any]] = []
        self._loop = loop
        self._held: list[_Handle] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task of this life."""
        return self._loop.create_task(work, context=self.context.copy())

    def hold(self, handle: _Handle) -> None:
        self._held.append(handle)

    def go_on(self) -> None:
        """Continue after a stop: everything that was held back is ready now."""
        self.stopped = False
        held, self._held = self._held, []
        for handle in held:
            self._loop.make_ready(handle)

    def step(self) -> bool:
        """Count one step. Whether it may be taken."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                self.fuse = None
                self.burn()
        return not self.dead


def current() -> Life | None:
    """The life that is running now."""
    return _life.get(None)


class VirtualLoop(asyncio.BaseEventLoop):
    """See above. Only what needs neither sockets nor threads works on it."""

    # Declared by the base class, but not to the type checker.
    _ready: Any
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.steps = 0
        self.bare = contextvars.Context()
        self.faults: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, fault: self.faults.append(fault))
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now

    def make_ready(self, handle: _Handle) -> None:
        self._ready.append(handle)

    def later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call back after `delay` seconds, whatever becomes of the life that asked."""
        return self.call_later(delay, callback, context=self.bare)

    def apart(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task that belongs to no life."""
        return self.create_task(work, context=self.bare.copy())

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)._scheduled = False
            if not scheduled:
                raise RuntimeError("everything waits and nothing is going to happen")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        if self.steps > MAX_STEPS:
            raise RuntimeError("it goes round in circles")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            life = handle._context.get(_life)
            if life is not None:
                if life.dead:
                    continue
                if life.stopped:
                    life.hold(handle)
                    continue
                if not life.step():
                    continue
                if life.stopped:
                    life.hold(handle)
                    continue
            self.steps += 1
            handle._run()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody else is to be woken."""


def _make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Future[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    life = current() if context is None else context.get(_life)
    if life is not None:
        life.tasks.append(task)
    return task


def bury(lives: list[Life]) -> None:
    """End the coroutines of dead lives, quietly, when what they do no longer matters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _bury(lives)


def _bury(lives: list[Life]) -> None:
    for life in lives:
        for task in life.tasks:
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            work = task.get_coro()
            for _ in range(10):
                try:
                    work.close()
                except BaseException:  # noqa: BLE001 - whatever they still want to do
                    continue
                break
        life.tasks.clear()
