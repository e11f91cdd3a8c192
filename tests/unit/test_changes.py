"""The log of changed keys: it may name too many, never too few."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cellstore.changes import MAX_ENTRIES, Changed, ChangeLog


def test_it_names_what_changed_since_a_revision() -> None:
    log = ChangeLog()
    log.note_record(1, 1, 100)
    log.note_blob("a", 2, 1000)
    log.note_record(1, 3, 200)
    log.note_record(2, 4, 300)
    assert log.above(0) == Changed([1, 2], ["a"], 1500 + 3 * 32)
    assert log.above(2) == Changed([1, 2], [], 500 + 2 * 32)
    assert log.above(3) == Changed([2], [], 300 + 32)
    assert log.above(4) == Changed([], [], 0)


def test_it_does_not_tell_of_what_was_before_it() -> None:
    log = ChangeLog(7)
    log.note_record(1, 8, 1)
    assert log.above(6) is None
    assert log.above(7) == Changed([1], [], 33)
    log.reset(9)
    assert len(log) == 0
    assert log.above(8) is None
    assert log.above(9) == Changed([], [], 0)


def test_what_is_trimmed_takes_no_room() -> None:
    log = ChangeLog()
    for rev in range(1, 101):
        log.note_record(rev, rev, 1)
    log.trim(90)
    assert len(log) == 10
    assert log.above(89) is None
    assert log.above(90) == Changed(list(range(91, 101)), [], 330)
    log.trim(50)
    assert log.above(89) is None


def test_it_is_bounded() -> None:
    log = ChangeLog()
    for rev in range(1, 2 * MAX_ENTRIES):
        log.note_record(rev, rev, 1)
        log.note_blob("lease.json", rev, 1)
    assert len(log) <= MAX_ENTRIES
    assert log.above(0) is None
    assert log.above(2 * MAX_ENTRIES - 3) == Changed(
        [2 * MAX_ENTRIES - 2, 2 * MAX_ENTRIES - 1], ["lease.json"], 99
    )


def test_what_was_rolled_back_hides_nothing() -> None:
    log = ChangeLog()
    log.note_record(1, 1, 1)
    # Three that share a commit, which fails; then each alone, and the second fails again.
    for rev, seq in enumerate((2, 3, 4), 2):
        log.note_record(seq, rev, 1)
    log.note_record(2, 2, 1)
    log.note_record(4, 3, 1)
    for asked, needed in ((1, {2, 4}), (2, {4})):
        changed = log.above(asked)
        assert changed is not None
        assert set(changed.seqs) >= needed
        assert 1 not in changed.seqs


KEYS = st.one_of(st.integers(0, 5), st.sampled_from("abc"))
STEPS = st.lists(
    st.one_of(
        # A transaction: what it writes, and whether it is kept.
        st.tuples(st.lists(KEYS, min_size=1, max_size=4), st.booleans()),
        st.sampled_from(["replace", "replace, rolled back", "trim"]),
    ),
    max_size=40,
)


@settings(max_examples=500, deadline=None)
@given(steps=STEPS, limit=st.sampled_from([3, 5, 1000]), start=st.integers(0, 3))
def test_it_never_misses_a_change(
    steps: list[tuple[list[int | str], bool] | str], limit: int, start: int
) -> None:
    log = ChangeLog(start, limit)
    rows: dict[int | str, int] = {}
    committed = known = start
    exact = limit > 100
    for step in steps:
        if step == "trim":
            log.trim(known := max(known, committed - 2))
        elif isinstance(step, str):
            log.reset(committed + 1)
            if step == "replace":
                committed += 1
                rows = {key: rev for key, rev in rows.items() if isinstance(key, str)}
                known = committed
            else:
                # What it does not know any more is what it would not have needed to.
                known = committed + 1
        else:
            keys, kept = step
            for rev, key in enumerate(keys, committed + 1):
                if isinstance(key, int):
                    log.note_record(key, rev, 1)
                else:
                    log.note_blob(key, rev, 1)
            if kept:
                rows |= {key: rev for rev, key in enumerate(keys, committed + 1)}
                committed += len(keys)
        assert len(log) <= limit
        for asked in range(committed + 1):
            changed = log.above(asked)
            if changed is None:
                # It gives up only on what it must.
                assert not exact or asked < known
            else:
                named = {*changed.seqs, *changed.keys}
                assert named >= {key for key, rev in rows.items() if rev > asked}
