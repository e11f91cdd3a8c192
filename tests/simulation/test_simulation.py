"""Every run of the simulation keeps the promises. See `__main__` for longer ones.

`CELLSTORE_SEEDS` says how many seeds are run, `CELLSTORE_FIRST_SEED` where they start.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.many import run_many

FIRST = int(os.environ.get("CELLSTORE_FIRST_SEED", "0"))
SEEDS = int(os.environ.get("CELLSTORE_SEEDS", "2000"))

# Seeds of one test.
PART = 500


@pytest.mark.parametrize("start", range(FIRST, FIRST + SEEDS, PART))
def test_no_seed_breaks_a_promise(start: int, report: Callable[[str], None]) -> None:
    began = time.perf_counter()
    seeds = min(PART, FIRST + SEEDS - start)
    counts: Counter[str] = Counter()
    failed = []
    for result in run_many(start, seeds):
        counts.update(result.counts)
        if result.violation is not None:
            failed.append(result.tell())
            if len(failed) == 3:
                break
    rate = seeds / (time.perf_counter() - began)
    report(f"simulation: seeds from {start}: {rate:.0f} a second, {counts['acked']} answers")
    assert not failed, "\n\n".join(failed)
    # A simulation in which nothing goes wrong shows nothing.
    assert counts["lost"]
    assert counts["unknown"]
    assert counts["refused"]
