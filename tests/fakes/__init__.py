"""Stand-ins for what a test wants to steer: the clock, and where blocking work is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ManualClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


async def inline(work: Callable[..., Any], *args: Any) -> Any:
    """Run blocking work at once, in the caller."""
    return work(*args)
