"""Who may claim, whether an attempt has won, how a fenced write is answered: the whole tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellstore.clock import Reading
from cellstore.epochs import EpochRecord
from cellstore.objects import Outcome
from cellstore.ownership import (
    Claim,
    Copy,
    Found,
    Identity,
    Lease,
    Refuse,
    Restore,
    Reuse,
    Seen,
    Step,
    Vanished,
    Verdict,
    Wait,
    after_create,
    after_fence,
    after_list,
    after_read,
    claim,
    lease_from,
)

ME = Identity("me", None, "disk-1", "boot-1", 30.0, frozenset({"boot-0"}))

RECORD = EpochRecord(
    cell="c",
    epoch=7,
    owner="other",
    advertise=None,
    lease_expires_at="",
    updated_at="",
    ttl=30.0,
    term=5,
    nonce="n",
    disk="disk-2",
    boot="boot-2",
    rev=10,
    base=None,
    pieces=(),
)
OURS = replace(RECORD, owner="me", disk="disk-1", boot="boot-1")
REBOOTED = replace(OURS, boot="boot-0")
NEWEST = Copy(term=5, rev=10, claimed=True)
AHEAD = Copy(term=5, rev=12, claimed=True)
BEHIND = Copy(term=5, rev=9, claimed=True)
OLDER_TERM = Copy(term=4, rev=99, claimed=True)
NEWER_TERM = Copy(term=6, rev=1, claimed=True)
NEVER = Copy(term=1, rev=3, claimed=False)

LIVE, LAST_QUARTER, OVER = 5.0, 25.0, 31.5


@pytest.mark.parametrize(
    ("record", "age", "copy", "expected"),
    [
        # Nobody has it.
        (None, None, None, Found()),
        (None, None, NEVER, Found()),
        (None, None, NEWEST, Vanished()),
        # Another has it.
        (RECORD, LIVE, None, Refuse(RECORD)),
        (RECORD, LIVE, NEWEST, Refuse(RECORD)),
        (RECORD, LAST_QUARTER, None, Restore(6.0)),
        (RECORD, OVER, None, Restore()),
        (RECORD, 31.0, None, Restore(0.25)),
        (RECORD, OVER, NEWEST, Restore()),
        (replace(RECORD, released=True), LIVE, None, Restore()),
        # The same name on another disk is a stranger.
        (replace(RECORD, owner="me"), LIVE, NEWEST, Refuse(replace(RECORD, owner="me"))),
        # This disk, this boot: the lock proves that the holder is dead.
        (OURS, LIVE, NEWEST, Reuse()),
        (OURS, LIVE, AHEAD, Reuse()),
        (OURS, None, AHEAD, Reuse()),
        (OURS, LIVE, BEHIND, Restore()),
        (OURS, LIVE, OLDER_TERM, Restore()),
        (OURS, LIVE, None, Restore()),
        (OURS, LIVE, NEWER_TERM, Vanished()),
        # This disk after a reboot or on another machine: the old process may live.
        (REBOOTED, LIVE, AHEAD, Wait(26.0)),
        (REBOOTED, LIVE, None, Restore(26.0)),
        (REBOOTED, OVER, AHEAD, Reuse()),
        (REBOOTED, OVER, BEHIND, Restore()),
        (replace(REBOOTED, released=True), LIVE, AHEAD, Reuse()),
        # A run that this directory never saw went on with a copy of it.
        (replace(OURS, boot="boot-7"), OVER, AHEAD, Restore()),
        (replace(OURS, boot="boot-7", released=True), LIVE, AHEAD, Restore()),
        # Written without a bucket, and another node has a run of that name.
        (replace(RECORD, term=1), OVER, NEVER, Restore()),
    ],
)
def test_claims(
    record: EpochRecord | None, age: float | None, copy: Copy | None, expected: Claim
) -> None:
    assert claim(Seen(7 if record else 0, record, age), copy, ME) == expected


@pytest.mark.parametrize(
    ("record", "waited", "expected"),
    [
        (RECORD, "n", Restore(6.0)),
        # Its owner wrote another record meanwhile: it lives, so its clients are told of it.
        (RECORD, "older", Refuse(RECORD)),
        (replace(RECORD, released=True), "older", Restore()),
        (REBOOTED, "older", Restore(6.0)),
    ],
)
def test_one_lease_is_waited_for_and_not_its_renewals(
    record: EpochRecord, waited: str, expected: Claim
) -> None:
    assert claim(Seen(7, record, LAST_QUARTER), None, ME, waited) == expected


def test_a_store_without_dates_is_watched() -> None:
    assert claim(Seen(7, RECORD, None, 0.0), None, ME) == Refuse(RECORD)
    assert claim(Seen(7, RECORD, None, 33.9), None, ME) == Restore(0.25)
    assert claim(Seen(7, RECORD, None, 34.1), None, ME) == Restore()


def test_a_lease_stops_early_for_its_owner_and_late_for_others() -> None:
    sent = Reading(100.0, 1000.0)
    lease = lease_from(sent, Reading(102.0, 1002.0), 5000.0, 30.0)
    assert lease == Lease(sent, 30.0, 5000.0 - 2 - 1 + 30)
    assert lease.holds(Reading(122.4, 1022.4))
    assert not lease.holds(Reading(122.5, 1022.5))
    # Whichever clock went on further counts: asleep, or set.
    assert not lease.holds(Reading(122.5, 1001.0))
    assert not lease.holds(Reading(101.0, 1022.5))
    assert lease.left(Reading(110.0, 1010.0)) == 20.0
    # Seen by another when its owner has stopped for seven seconds and more.
    assert Seen(7, RECORD, 30.9).left() > 0


def test_a_win_must_be_current() -> None:
    lease = Lease(Reading(100.0, 1000.0), 30.0, 5027.0)
    soon, late = Reading(110.0, 1010.0), Reading(123.0, 1023.0)
    won = Outcome.CREATED
    assert after_create(won, lease, soon, 5010.0) is Step.WON
    assert after_create(won, lease, soon, None) is Step.WON
    assert after_create(won, replace(lease, end=None), soon, 9999.0) is Step.WON
    assert after_create(won, lease, late, 5010.0) is Step.CONFIRM
    assert after_create(won, lease, soon, 5027.0) is Step.CONFIRM
    assert after_create(won, None, soon, 5010.0) is Step.CONFIRM
    assert after_create(Outcome.EXISTS, lease, soon, 5010.0) is Step.READ
    assert after_create(Outcome.UNKNOWN, lease, soon, None) is Step.READ


def test_what_is_found_decides() -> None:
    for outcome in (Outcome.EXISTS, Outcome.UNKNOWN, Outcome.CREATED):
        assert after_read(outcome, "mine", "mine") is Step.CONFIRM
        assert after_read(outcome, "mine", "another's") is Step.LOST
        assert after_read(outcome, "mine", "") is Step.LOST
    assert after_read(Outcome.EXISTS, "mine", None) is Step.LIST
    assert after_read(Outcome.UNKNOWN, "mine", None) is Step.SEND


def test_what_is_listed_decides() -> None:
    for step in (Step.CONFIRM, Step.LIST):
        assert after_list(step, 7, 8) is Step.LOST
    assert after_list(Step.CONFIRM, 7, 7) is Step.WON
    assert after_list(Step.CONFIRM, 7, 6) is Step.READ
    # What is at our epoch is not known to be ours, nor to be another's.
    assert after_list(Step.LIST, 7, 7) is Step.READ
    assert after_list(Step.LIST, 7, 6) is Step.SEND


def test_a_fenced_write_is_answered_by_what_is_known_of_it() -> None:
    assert after_fence(10, settled=10, sent=12) is Verdict.SUCCESS
    assert after_fence(11, settled=10, sent=12) is Verdict.UNKNOWN
    assert after_fence(12, settled=10, sent=12) is Verdict.UNKNOWN
    assert after_fence(13, settled=10, sent=12) is Verdict.ELSEWHERE
