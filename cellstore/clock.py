"""The only place that reads a clock or draws at random; everything else is handed the result."""

from __future__ import annotations

import time
from typing import Protocol
from uuid import uuid4  # noqa: TID251


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back, goes on while the machine sleeps."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def fresh_node_id() -> str:
    """A name for a node that has none."""
    return f"node-{uuid4()}"
