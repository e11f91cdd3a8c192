"""A seed stands for one run: whoever runs it again sees the same, event by event."""

from __future__ import annotations

import pytest

from tests.simulation.many import run_many
from tests.simulation.profiles import PROFILES
from tests.simulation.run import run_seed


@pytest.mark.parametrize("profile", PROFILES)
def test_a_seed_gives_the_same_trace(profile: str) -> None:
    for seed in range(3):
        first, second = (run_seed(seed, PROFILES[profile]) for _ in range(2))
        assert first.trace == second.trace
        assert first.digest == second.digest
        assert first.steps == second.steps


def test_another_process_sees_the_same() -> None:
    """Hashes of texts differ there."""
    results = list(run_many(0, 4, profile="mixed", workers=1))
    here = [run_seed(seed, PROFILES["mixed"]).digest for seed in range(4)]
    assert [result.digest for result in results] == here


def test_another_seed_gives_another_trace() -> None:
    profile = PROFILES["mixed"]
    assert run_seed(1, profile).digest != run_seed(2, profile).digest
