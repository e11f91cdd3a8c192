"""A node that is broken on purpose: `python -m deploy.drills.broken FAULT serve ...`.

A drill that passes with one of these proves nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from cellstore.cli import main
from cellstore.directory import DataDirectory
from cellstore.tenure import Tenure


def _replace(owner: type, name: str, method: Callable[..., object]) -> None:
    setattr(owner, name, method)


def break_fence() -> None:
    """An owner goes on serving when its lease has run out."""
    _replace(Tenure, "holds", lambda tenure: not tenure.over)


def answer_early() -> None:
    """Under --ack bucket a write is acknowledged before it is in the bucket."""
    _replace(Tenure, "answers", lambda tenure, _: tenure.holds())


def forget_dirt() -> None:
    """A restarted node does not know what it left unpublished."""
    _replace(DataDirectory, "marks", lambda _: [])
    _replace(DataDirectory, "marked", lambda *_: False)


FAULTS: dict[str, Callable[[], None]] = {
    "fence": break_fence,
    "early": answer_early,
    "forget": forget_dirt,
}


if __name__ == "__main__":
    fault = sys.argv.pop(1)
    if fault not in FAULTS:
        raise SystemExit(f"no such fault: {fault}; there are {', '.join(FAULTS)}")
    FAULTS[fault]()
    main()
