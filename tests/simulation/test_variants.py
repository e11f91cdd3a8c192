"""Each deliberately broken variant is noticed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.many import run_part
from tests.simulation.run import Result
from tests.simulation.variants import VARIANTS

# A variant that so many seeds do not show counts as unnoticed.
SEEDS = 2000


def _catch(name: str) -> Result | None:
    results = run_part((0, SEEDS, VARIANTS[name].profile, name))
    return results[-1] if results[-1].violation else None


@pytest.fixture(scope="module")
def caught() -> Iterator[dict[str, Result | None]]:
    """The first run of each variant that failed; found on all processors."""
    names = list(VARIANTS)
    with multiprocessing.get_context("spawn").Pool() as pool:
        yield dict(zip(names, pool.imap(_catch, names, chunksize=1), strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_caught(
    name: str, caught: dict[str, Result | None], report: Callable[[str], None]
) -> None:
    result = caught[name]
    assert result is not None, f"{SEEDS} seeds did not show that {name} is broken"
    report(f"simulation: {name} is caught by seed {result.seed}")
