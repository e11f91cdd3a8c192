"""The only place that reads a clock or draws at random; everything else is handed the result."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from typing import NamedTuple, Protocol
from uuid import uuid4  # noqa: TID251


class Reading(NamedTuple):
    """Both clocks of a machine at one instant, in seconds.

    `boot` goes on while the machine sleeps and is never set; `wall` may be set, or be wrong.
    """

    boot: float
    wall: float

    def since(self, earlier: Reading) -> float:
        """Seconds since `earlier`, by the clock that went on further."""
        return max(self.boot - earlier.boot, self.wall - earlier.wall)


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back, goes on while the machine sleeps."""

    def reading(self) -> Reading:
        """Both clocks, now."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def reading(self) -> Reading:
        return Reading(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())  # noqa: TID251


def iso(wall: float) -> str:
    """A wall clock's time for people to read, in UTC."""
    return (
        datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def fresh_node_id() -> str:
    """A name for a node that has none."""
    return f"node-{uuid4()}"


def fresh_id() -> str:
    """A name that nothing else has: 128 random bits in hex."""
    return secrets.token_hex(16)
