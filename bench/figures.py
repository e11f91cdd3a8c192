"""What was measured: figures of each side, and their ratio pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar

OURS = "ours"
REFERENCE = "reference"
# The floors: the least that HTTP and SQLite cost by themselves.
HTTP = "http"
SQLITE = "sqlite"

S = TypeVar("S")


class Target(NamedTuple):
    """Where the ratio ours/reference shall be: at most there, or at least."""

    bound: float
    at_least: bool = False

    def met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:.2f}"


class Limit(NamedTuple):
    """Where ours shall be, whatever the reference does: at most there."""

    bound: float

    def met(self, figure: float) -> bool:
        return figure <= self.bound

    def __str__(self) -> str:
        return f"ours <= {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One line of the outcome. Samples of one index were taken side by side, so they compare."""

    scenario: str
    name: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    target: Target | Limit | None = None

    def median(self, side: str) -> float | None:
        """The middle one of a side's samples, None where it was not measured."""
        samples = self.samples.get(side)
        return median(samples) if samples else None

    def ratios(self) -> list[float]:
        """Ours by the reference, pair by pair: the machine's drift is in both."""
        pairs = zip(self.samples.get(OURS, ()), self.samples.get(REFERENCE, ()), strict=False)
        return [ours / reference for ours, reference in pairs if reference > 0]

    def met(self) -> bool | None:
        """Whether the figure is where it shall be, None where that cannot be told."""
        if isinstance(self.target, Limit):
            ours = self.median(OURS)
            return None if ours is None else self.target.met(ours)
        ratios = self.ratios()
        return self.target.met(median(ratios)) if self.target and ratios else None


def alternate(rounds: Iterable[int], sides: Mapping[str, Callable[[int], S]]) -> dict[str, list[S]]:
    """Measure every side once a round, in this order and back again in the next round."""
    taken: dict[str, list[S]] = {side: [] for side in sides}
    order = list(sides)
    for number in rounds:
        for side in order:
            taken[side].append(sides[side](number))
        # Ours and the reference stay neighbours, and neither always comes first.
        order.reverse()
    return taken


def each(taken: Mapping[str, Sequence[S]], value: Callable[[S], float]) -> dict[str, list[float]]:
    """One figure of every sample."""
    return {side: [value(sample) for sample in samples] for side, samples in taken.items()}


def merged(taken: Mapping[str, Sequence[Sequence[S]]], size: int) -> dict[str, list[list[S]]]:
    """Join every `size` samples in a row into one."""
    return {
        side: [
            [value for sample in samples[start : start + size] for value in sample]
            for start in range(0, len(samples), size)
        ]
        for side, samples in taken.items()
    }
