"""What all drills share: their options, where they work, and how they say what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random  # noqa: TID251

from deploy.drills.nodes import DrillFailed, LocalNode, status


@dataclass(frozen=True, slots=True)
class Options:
    """`acks` are the ways of acknowledging to drill; `broken` names a fault of `broken.py`."""

    folder: Path
    seed: int
    short: bool = False
    acks: tuple[str, ...] = ("bucket", "disk")
    broken: str | None = None

    def rng(self) -> Random:
        return Random(self.seed)

    def place(self, name: str) -> Path:
        """A new folder for one part of a drill."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder


Drill = Callable[[Options], None]


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def require(faults: Iterable[str]) -> None:
    """Raise DrillFailed that names the first few faults, if there are any."""
    found = list(faults)
    if found:
        more = f"\n  and {len(found) - 20} more" if len(found) > 20 else ""
        raise DrillFailed("\n  ".join(found[:20]) + more)


def owned(node: LocalNode) -> int:
    """How many cells a node owns now; 0 if it does not say."""
    try:
        return sum(bool(cell.get("holds")) for cell in status(node)["cells"])
    except OSError:
        return 0


def owners(nodes: Iterable[LocalNode]) -> str:
    """Who owns how many cells now, in words."""
    parts = []
    for node in nodes:
        orphans = len(node.orphans())
        parts.append(f"{node.name} {owned(node)}" + (f" ({orphans} orphans)" if orphans else ""))
    return ", ".join(parts)
