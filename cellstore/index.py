"""Which runs there are: those of this disk, those in the bucket, those just created."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable


class RunIndex:
    """The ids of all runs that are known, sorted. None is forgotten, for none is ever deleted."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._sorted: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, name: str) -> None:
        """Note one run."""
        if name not in self._known:
            self._known.add(name)
            insort(self._sorted, name)

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are not known yet."""
        return [name for name in names if name not in self._known]

    def merge(self, names: Iterable[str]) -> None:
        """Note many runs."""
        fresh = set(names) - self._known
        if fresh:
            self._known |= fresh
            self._sorted = sorted(self._known)

    def all(self) -> list[str]:
        """The ids, sorted. The list is not to be changed."""
        return self._sorted
