"""The judge of the drills: what it calls a broken promise, and what it lets pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.drills.ledger import APPEND, READ, SWAP, Entry
from deploy.drills.nodes import Claim
from deploy.drills.verdict import Orphan, Served, Trouble, Verdict, judge

RUN = "run-a"


def text(seq: int) -> str:
    return json.dumps({"seq": seq})


def append(seq: int, at: float, node: str = "a", status: int = 200, answered: float = 0.0) -> Entry:
    entry = Entry("client", RUN, APPEND, str(seq), None, text(seq), node, at)
    entry.answered, entry.status = answered or at + 0.1, status
    return entry


def swap(key: str, parent: str | None, at: float, status: int = 200) -> Entry:
    entry = Entry("rival", RUN, SWAP, key, parent, "", "a", at)
    entry.answered, entry.status = at + 0.1, status
    return entry


def read(saw: int, at: float, node: str = "a") -> Entry:
    entry = Entry("reader", RUN, READ, "", None, "", node, at)
    entry.answered, entry.status, entry.saw = at + 0.1, 200, saw
    return entry


def claim(node: str, epoch: int, term: int, second: int) -> Claim:
    return Claim(node, RUN, epoch, term, f"1970-01-01T00:00:{second:02d}+00:00")


OWNED = [claim("a", 1, 1, 0)]
# Taken over at 20 s, after the node was cut off at 10.
TAKEN_OVER = [*OWNED, claim("b", 9, 9, 20)]
CUT = Trouble("a", "cut", 10.0, 25.0)


def verdict(entries: list[Entry], seqs: list[int], **more: Any) -> Verdict:
    served = Served([text(seq) for seq in seqs], more.pop("value", None))
    given: dict[str, Any] = {
        "claims": OWNED,
        "orphans": [],
        "troubles": [],
        "ack_bucket": True,
        "max_lag": 5.0,
    }
    given |= more
    return judge(entries, {RUN: served}, **given)


def test_what_agrees() -> None:
    entries = [append(1, 1.0), append(2, 2.0, status=503), append(2, 3.0), append(3, 4.0, status=0)]
    assert verdict(entries, [1, 2]).faults == []
    # What had no certain answer may be there.
    assert verdict(entries, [1, 2, 3]).faults == []


@pytest.mark.parametrize(
    ("seqs", "said"),
    [
        ([1], "seq 2, acknowledged by a, is lost"),
        ([1, 2, 2], "seq 2 is there 2 times"),
        ([2, 1], "out of order"),
        ([1, 2, 3], "seq 3 is there and was answered 409 only"),
        ([1, 2, 4], "seq 4 is there and was never sent"),
    ],
)
def test_what_does_not(seqs: list[int], said: str) -> None:
    entries = [append(1, 1.0), append(2, 2.0), append(3, 3.0, status=409)]
    faults = verdict(entries, seqs).faults
    assert len(faults) == 1
    assert said in faults[0]


def test_an_answer_that_nobody_expects() -> None:
    assert "answered 500" in verdict([append(1, 1.0, status=500)], []).faults[0]


def test_two_owners() -> None:
    late = append(3, 21.0)
    faults = verdict([append(1, 1.0), append(2, 20.5, "b"), late], [1, 2, 3], claims=TAKEN_OVER)
    assert len(faults.faults) == 1
    assert "two owners: a did append 3" in faults.faults[0]
    # What was sent before the other claimed it may have been done before.
    entries = [append(1, 1.0), append(2, 19.0, answered=21.0), append(3, 22.0, "b")]
    assert verdict(entries, [1, 2, 3], claims=TAKEN_OVER).faults == []


def test_a_stale_read() -> None:
    entries = [append(1, 1.0), append(2, 2.0), read(1, 3.0)]
    assert "served a journal up to seq 1 when 2" in verdict(entries, [1, 2]).faults[0]
    # It was acknowledged while the read was under way.
    assert verdict([append(1, 1.0), append(2, 2.0), read(1, 2.05)], [1, 2]).faults == []


def test_swaps_are_one_chain() -> None:
    entries = [swap("x", None, 1.0), swap("y", "x", 2.0), swap("z", "x", 3.0)]
    faults = verdict(entries, [], value=json.dumps({"id": "z"})).faults
    assert len(faults) == 1
    assert "swap y" in faults[0]
    entries = [swap("x", None, 1.0), swap("y", "x", 2.0, status=412)]
    assert "swap y counted" in verdict(entries, [], value=json.dumps({"id": "y"})).faults[0]


def lost(orphans: list[Orphan], at: float = 9.0, **more: Any) -> Verdict:
    entries = [append(1, 1.0), append(2, at), append(3, 30.0, "b")]
    given = {"claims": TAKEN_OVER, "troubles": [CUT], "ack_bucket": False} | more
    return verdict(entries, [1, 3], orphans=orphans, **given)


ORPHAN = Orphan("a", RUN, 1, {2: text(2)}, None)


def test_a_loss_that_was_foreseen() -> None:
    found = lost([ORPHAN])
    assert found.faults == []
    assert [entry.key for entry in found.lost] == ["2"]


def test_a_loss_that_was_not() -> None:
    assert "in no orphan" in lost([]).faults[0]
    assert "in no orphan" in lost([Orphan("b", RUN, 1, {2: text(2)}, None)]).faults[0]
    assert "though no other node took over" in lost([ORPHAN], claims=OWNED).faults[0]
    assert "well within 5 s after" in lost([ORPHAN], at=3.0).faults[0]
    assert "under --ack bucket" in lost([ORPHAN], ack_bucket=True).faults[0]


def test_what_one_takeover_may_lose() -> None:
    entries = [append(1, 6.0), append(2, 13.0)]
    orphan = Orphan("a", RUN, 1, {1: text(1), 2: text(2)}, None)
    found = verdict(
        entries, [], claims=TAKEN_OVER, troubles=[CUT], ack_bucket=False, orphans=[orphan]
    )
    assert "a lost writes of 7.0 s" in found.faults[0]
