"""Each known fault is made to happen, and no promise is broken."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios import ELSEWHERE, FAULTS, SCENARIOS
from tests.simulation.stage import perform


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_breaks_no_promise(name: str) -> None:
    scenario = SCENARIOS[name]
    result = perform(scenario.name, scenario.script, scenario.knobs)
    assert result.violation is None, result.tell()


def test_every_known_fault_has_its_place() -> None:
    assert set(FAULTS.values()) <= set(SCENARIOS)
    assert sorted(FAULTS | ELSEWHERE) == list(range(1, 36))
