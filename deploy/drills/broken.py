"""A node that is broken on purpose: `python -m deploy.drills.broken FAULT serve ...`.

A drill that passes with one of these proves nothing.
"""

from __future__ import annotations

import sys

from cellstore.cli import main
from cellstore.tenure import Tenure

FAULTS = {"fence": "an owner goes on serving when its lease has run out"}


def break_fence() -> None:
    """Let every owner believe that its lease holds for ever."""

    def holds(self: Tenure) -> bool:
        return not self.over

    Tenure.holds = holds  # type: ignore[method-assign]


if __name__ == "__main__":
    fault = sys.argv.pop(1)
    if fault != "fence":
        raise SystemExit(f"no such fault: {fault}; there is {', '.join(FAULTS)}")
    break_fence()
    main()
