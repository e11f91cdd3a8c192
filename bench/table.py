"""The outcome as a table to read, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.figures import HTTP, OURS, REFERENCE, SQLITE, Figure

_SIDES = {OURS: "ours", REFERENCE: "reference", HTTP: "http floor", SQLITE: "sqlite floor"}
_COLUMNS = (
    "scenario", "figure", "unit", *_SIDES.values(), "ratio", "min..max", "pairs", "target", "met",
)  # fmt: skip
_LEFT = 3
_MET = {True: "yes", False: "NO", None: "-"}


def table(figures: Sequence[Figure]) -> str:
    """One line a figure; the ratio is the median of the pairs' ratios ours/reference."""
    rows = [_COLUMNS, *map(_row, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if index < _LEFT else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    ratios = figure.ratios()
    return (
        figure.scenario,
        figure.name,
        figure.unit,
        *(_number(figure.median(side)) for side in _SIDES),
        f"{median(ratios):.2f}" if ratios else "-",
        f"{min(ratios):.2f}..{max(ratios):.2f}" if len(ratios) > 1 else "-",
        str(len(ratios)) if ratios else "-",
        str(figure.target) if figure.target else "-",
        _MET[figure.met()],
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def as_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """The same for programs, with every sample."""
    return [_object(figure) for figure in figures]


def _object(figure: Figure) -> dict[str, Any]:
    ratios = figure.ratios()
    return {
        "scenario": figure.scenario,
        "figure": figure.name,
        "unit": figure.unit,
        "medians": {side: figure.median(side) for side in figure.samples},
        "ratio": median(ratios) if ratios else None,
        "ratios": ratios,
        "target": str(figure.target) if figure.target else None,
        "met": figure.met(),
        "samples": {side: list(samples) for side, samples in figure.samples.items()},
    }
