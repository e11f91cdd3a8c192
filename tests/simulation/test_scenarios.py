"""Each known fault is made to happen, and no promise is broken."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stage import perform

# Where each known fault is made to happen, by its number on the design's list.
FAULTS: dict[int, str] = {
    1: "a-write-survives-a-crash-and-is-published-without-a-request",
    2: "an-owner-that-lost-the-cell-deletes-nothing-of-its-successor",
    3: "a-crash-after-the-claim-and-before-its-answer",
    4: "a-renewal-after-a-takeover-fences",
    5: "a-pause-between-commit-and-answer",
    6: "two-processes-with-one-disk-id",
    8: "a-claim-in-the-place-of-a-collected-record",
    9: "many-cells-keep-their-leases",
    10: "no-request-waits-for-a-slow-upload",
    12: "one-cell-that-fails-stops-no-other",
    13: "a-stop-publishes-and-releases",
    16: "a-short-outage-is-caught-up-with",
    17: "many-small-syncs-stay-few-pieces",
    20: "a-list-that-fails-is-no-empty-list",
    21: "a-restore-beside-an-older-copy-with-a-log",
    22: "a-release-whose-answer-is-lost",
    23: "clocks-of-other-years",
    24: "what-was-deleted-stays-deleted",
    25: "a-create-that-lands-after-its-rows-were-sent-again",
    26: "an-upload-of-two-minutes-is-not-swept",
    27: "reads-and-no-ops-wait-for-the-bucket-too",
    28: "what-was-fenced-after-its-commit-is-not-done-twice",
    29: "an-outage-leaves-dirty-cells-to-be-published",
    30: "a-record-of-the-process-before-is-no-win",
    31: "two-processes-with-one-disk-id",
    32: "a-late-delete-meets-no-new-object",
    33: "writes-up-to-the-release-are-in-it",
    34: "a-write-in-the-bucket-is-not-said-to-be-undone",
    35: "a-holder-that-lost-to-its-own-disk-touches-nothing",
}

# Faults of one process, of its HTTP surface or of a real store, and the tests that have them.
ELSEWHERE: dict[int, str] = {
    7: "the probe of conditional writes at start",
    11: "acceptance: the status while a cell is busy",
    14: "acceptance: the index of runs names no run that another owns alone",
    15: "registry: one invalid entry spoils no other, and a failed write changes nothing",
    18: "acceptance: memory is bounded by what is counted",
    19: "contract: a broken cell is refused by itself",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_breaks_no_promise(name: str) -> None:
    scenario = SCENARIOS[name]
    result = perform(scenario.name, scenario.script, scenario.knobs)
    assert result.violation is None, result.tell()


def test_every_known_fault_has_its_place() -> None:
    assert set(FAULTS.values()) <= set(SCENARIOS)
    assert sorted(FAULTS | ELSEWHERE) == list(range(1, 36))
