"""Each known fault is made to happen, and no promise is broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stage import perform

DOCS = Path(__file__).parents[2] / "docs" / "faults.md"


def test_every_scenario_stands_for_a_known_fault() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 36))
    named = {name for _, tests in rows for name in re.findall(r"`([a-z-]+)`", tests)}
    assert named - {"load", "term", "outage"} == set(SCENARIOS)
    files = {name for _, tests in rows for name in re.findall(r"`([a-z_/]+\.py)`", tests)}
    assert [name for name in files if not (DOCS.parents[1] / "tests" / name).exists()] == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_breaks_no_promise(name: str) -> None:
    scenario = SCENARIOS[name]
    result = perform(scenario.name, scenario.script, scenario.knobs)
    assert result.violation is None, result.tell()
