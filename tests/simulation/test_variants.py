"""Each deliberately broken variant is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.pool import AsyncResult
from pathlib import Path

import pytest

from tests.simulation.many import run_part, worker_pool
from tests.simulation.run import Result
from tests.simulation.variants import VARIANTS

DOCS = Path(__file__).parents[2] / "docs" / "ownership.md"

# A variant that so many seeds do not show counts as unnoticed.
SEEDS = 2000


def _catch(name: str) -> Result | None:
    results = run_part((0, SEEDS, VARIANTS[name].profile, name))
    return results[-1] if results[-1].violation else None


@pytest.fixture(scope="module")
def caught() -> Iterator[dict[str, AsyncResult[Result | None]]]:
    """The first run of each variant that failed; found on all processors meanwhile."""
    with worker_pool() as pool:
        yield {name: pool.apply_async(_catch, (name,)) for name in VARIANTS}


def test_every_variant_is_documented() -> None:
    told = DOCS.read_text()
    assert [name for name in VARIANTS if f"`{name}`" not in told] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_caught(
    name: str, caught: dict[str, AsyncResult[Result | None]], report: Callable[[str], None]
) -> None:
    result = caught[name].get()
    assert result is not None, f"{SEEDS} seeds did not show that {name} is broken"
    report(f"simulation: {name} is caught by seed {result.seed}: {result.violation}"[:160])
