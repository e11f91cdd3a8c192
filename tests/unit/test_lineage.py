"""What the next sync ships: its bounds for every cell and load, what it costs, what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellstore.epochs import MAX_DELTA, Base, EpochRecord, Piece, meta_key
from cellstore.lineage import (
    MAX_PIECES,
    MAX_UPLOADS,
    MIN_FOLD,
    Fold,
    Ship,
    after_fold,
    extend,
    garbage,
    plan,
    unlisted,
)

# What a piece weighs beside its rows, what a record does, and what it does for each listed piece.
EMPTY = 450
RECORD = 800
LISTED = 130


@dataclass
class Model:
    """A cell that syncs by the plan: arithmetic in place of data. Sizes in bytes.

    `ratio` is how well it compresses. `grows` says whether changes are new rows or overwrite.
    """

    cell: int = 0
    ratio: float = 3
    grows: bool = True
    base: Base | None = None
    pieces: tuple[Piece, ...] = ()
    rev: int = 0
    data: int = 0
    sent: int = 0
    requests: int = 0
    folds: int = 0
    most: int = 0
    # Bytes that changed in each revision since the last snapshot, and how often they were sent.
    changes: dict[int, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, cell: int) -> Model:
        """A cell that was there before and has its snapshot in the bucket."""
        return cls(cell, base=Base("k", "s", cell // 3, 0), grows=False)

    def packed(self, raw: int) -> int:
        return EMPTY + int(raw / self.ratio)

    def sync(self, raw: int, syncs: int = 1) -> Model:
        for _ in range(syncs):
            self._sync(raw)
        return self

    def _sync(self, raw: int) -> None:
        self.rev += 1
        self.cell += raw if self.grows else 0
        self.data += raw
        self.changes[self.rev] = raw
        self.times[self.rev] = 0
        before = sum(piece.size for piece in self.pieces)
        outweigh = max(self.base.size if self.base else 0, MIN_FOLD)
        decision = plan(self.base, self.pieces, self.rev, raw, self.cell)
        if isinstance(decision, Fold):
            size = self.packed(self.cell)
            self.base, self.pieces = after_fold("k", "s", size, self.rev)
            self.changes, self.times = {}, {}
            self.folds += 1
            self.requests += 2
            self.sent += size + RECORD
            return
        assert before <= outweigh
        assert decision.kept == self.pieces[: len(decision.kept)]
        assert decision.start == (
            decision.kept[-1].end if decision.kept else self.base.rev if self.base else 0
        )
        size = self.packed(sum(self.changes[r] for r in range(decision.start + 1, self.rev + 1)))
        inside = size <= MAX_DELTA
        self.pieces = extend(
            decision,
            self.rev,
            size,
            "s",
            epoch=self.rev if inside else None,
            key=None if inside else "k",
        )
        self.most = max(self.most, len(self.pieces))
        self.requests += 1 if inside else 2
        self.sent += RECORD + LISTED * len(self.pieces) + (size * 4 // 3 if inside else size)
        for rev in range(decision.start + 1, self.rev + 1):
            self.times[rev] += 1

    def check(self) -> None:
        assert len(self.pieces) <= MAX_PIECES
        for piece in self.pieces:
            assert piece.uploads <= MAX_UPLOADS
            assert max(self.times[rev] for rev in range(piece.start + 1, piece.end + 1)) == (
                piece.uploads
            )


SIZES = st.sampled_from([1, 100, 600, 3_000, 20_000, 60_000, 300_000, 2_000_000])


@settings(max_examples=60, deadline=None)
@given(
    cell=st.sampled_from([0, 0, 30_000, 1_000_000, 100_000_000, 2_000_000_000]),
    ratio=st.sampled_from([1.0, 3.0, 20.0]),
    grows=st.booleans(),
    load=st.lists(st.tuples(SIZES, st.integers(1, 400)), min_size=1, max_size=12),
)
def test_every_cell_stays_within_the_bounds(
    cell: int, ratio: float, grows: bool, load: list[tuple[int, int]]
) -> None:
    model = replace(Model.of(cell), ratio=ratio, grows=grows) if cell else Model(ratio=ratio)
    for raw, syncs in load:
        for _ in range(syncs):
            model.sync(raw)
            model.check()


PIECES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 10**7)), max_size=80)


@settings(max_examples=500, deadline=None)
@given(pieces=PIECES, base=st.integers(0, 10**9), estimate=st.integers(0, 10**7))
def test_whatever_a_record_lists_the_next_is_within_the_bounds(
    pieces: list[tuple[int, int]], base: int, estimate: int
) -> None:
    listed = tuple(
        Piece(None, f"k{n}", 5 + n, 6 + n, size, "s", uploads)
        for n, (uploads, size) in enumerate(pieces)
    )
    decision = plan(Base("k", "s", base, 5), listed, 6 + len(listed), estimate, 10**9)
    if isinstance(decision, Ship):
        assert len(decision.kept) < MAX_PIECES
        assert decision.uploads <= MAX_UPLOADS
        merged = listed[len(decision.kept) :]
        assert decision.uploads == 1 + max((piece.uploads for piece in merged), default=0)


def test_nothing_to_ship_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="revision 5 is not above 5"):
        plan(Base("k", "s", 1, 5), (), 5, 0, 1000)
    with pytest.raises(ValueError, match="revision 0 is not above 0"):
        plan(None, (), 0, 0, 1000)


def test_a_change_is_shipped_by_itself() -> None:
    first = plan(None, (), 3, 600, 30_000)
    assert first == Ship(0, (), 1)
    assert isinstance(first, Ship)
    pieces = extend(first, 3, 700, "s", epoch=1)
    assert pieces == (Piece(1, None, 0, 3, 700, "s", 1),)
    assert plan(None, pieces, 4, 600, 30_000) == Ship(3, pieces, 1)


def test_tiny_deltas_are_merged_into_one() -> None:
    model = Model(10**6, grows=False).sync(600, 13)
    assert [piece.uploads for piece in model.pieces] == [1] * 13
    while len(model.pieces) > 1:
        model.sync(600)
    (merged,) = model.pieces
    assert (merged.start, merged.end, merged.uploads) == (0, model.rev, 2)
    assert 16 <= model.rev <= 20
    assert merged.epoch is not None


def test_large_ones_are_left_alone_until_the_places_are_used_up() -> None:
    model = Model.of(100_000_000).sync(60_000, MAX_PIECES)
    assert len(model.pieces) == MAX_PIECES
    model.sync(60_000)
    assert [piece.uploads for piece in model.pieces] == [2]
    assert model.folds == 0


def test_a_snapshot_is_made_when_the_pieces_outweigh_the_base() -> None:
    base = Base("k", "s", 2 * MIN_FOLD, 10)
    piece = Piece(None, "p", 10, 20, 2 * MIN_FOLD - 5_000, "s")
    assert isinstance(plan(base, (piece,), 21, 600, 10**7), Ship)
    assert plan(base, (piece,), 21, 60_000, 10**7) == Fold()
    # A cell that was never shipped, and has much, starts with one.
    assert plan(None, (), 21, 10**8, 10**8) == Fold()


def test_a_snapshot_is_made_rather_than_a_merge_that_costs_as_much() -> None:
    model = Model(cell=300_000, grows=False).sync(40_000, MAX_PIECES)
    assert len(model.pieces) == MAX_PIECES
    assert model.sync(40_000).folds == 1


def test_a_snapshot_is_made_when_nothing_more_can_be_merged() -> None:
    pieces = tuple(Piece(n, None, n, n + 1, 9_000, "s", 4) for n in range(MAX_PIECES))
    assert plan(None, pieces, 100, 600, 10**9) == Fold()
    assert isinstance(plan(None, pieces[:-1], 100, 600, 10**9), Ship)


MINUTE = 30  # Syncs, one every two seconds.


@pytest.mark.parametrize(
    ("name", "model", "raw", "syncs", "most_bytes", "most_requests"),
    [
        # Bytes sent for each that changed, requests for each sync.
        ("600 B x 50/s, 1,000 records", Model(), 60_000, 10, 1.0, 1.2),
        ("600 B x 50/s, 10,000 records", Model(), 60_000, 100, 1.0, 1.2),
        ("20 KB x 50/s, 1,000 records", Model(), 2_000_000, 10, 1.0, 2.4),
        ("20 KB x 50/s, 10,000 records", Model(), 2_000_000, 100, 1.0, 2.4),
        # 200 KB a minute.
        ("1 KB each 2 s in 100 MB, an hour", Model.of(10**8), 1000, 60 * MINUTE, 200 / 30, 1.1),
        ("1 KB each 2 s in 100 MB, ten hours", Model.of(10**8), 1000, 600 * MINUTE, 200 / 30, 1.1),
    ],
)
def test_what_it_costs(
    name: str,
    model: Model,
    raw: int,
    syncs: int,
    most_bytes: float,
    most_requests: float,
    report: Callable[[str], None],
) -> None:
    model = replace(model, changes={}, times={})
    model.sync(raw, syncs)
    times, requests = model.sent / model.data, model.requests / syncs
    report(
        f"lineage, {name}: sent {times:.2f} times what changed, "
        f"{model.sent / syncs * MINUTE / 1000:.0f} KB a minute, {requests:.3f} requests a sync, "
        f"{model.folds} snapshots, at most {model.most} pieces"
    )
    assert times <= most_bytes
    assert requests <= most_requests


def record(epoch: int, base: Base | None, pieces: tuple[Piece, ...]) -> EpochRecord:
    rev = pieces[-1].end if pieces else base.rev if base else 0
    return EpochRecord("c", epoch, "n", None, "", "", 30, 1, "n", "d", "b", rev, base, pieces, None)


BASE = Base("cells/c/state/base.db", "s", 1, 10)
KEY = "cells/c/state/a.seg"
SEGMENT = Piece(None, KEY, 10, 20, 1, "s")
FIRST, SECOND = Piece(5, None, 20, 21, 1, "s"), Piece(6, None, 21, 22, 1, "s")


def test_a_record_that_only_renews_leaves_the_one_before_it() -> None:
    before, after = record(6, BASE, (SEGMENT, FIRST)), record(7, BASE, (SEGMENT, FIRST))
    assert garbage(before, after) == {meta_key("c", 6)}
    # The newest itself is none, whatever it is compared with.
    assert garbage(after, after) == frozenset()


def test_a_record_whose_changes_are_still_listed_stays() -> None:
    before, after = record(5, BASE, (SEGMENT, FIRST)), record(6, BASE, (SEGMENT, FIRST, SECOND))
    assert garbage(before, after) == frozenset()


def test_a_merge_leaves_what_it_replaced() -> None:
    merged = Piece(7, None, 10, 23, 1, "s", 2)
    before, after = record(6, BASE, (SEGMENT, FIRST, SECOND)), record(7, BASE, (merged,))
    assert garbage(before, after) == {KEY, meta_key("c", 5), meta_key("c", 6)}


def test_a_snapshot_leaves_everything() -> None:
    base = Base("cells/c/state/new.db", "s", 1, 22)
    before, after = record(6, BASE, (SEGMENT, FIRST, SECOND)), record(7, base, ())
    gone = {BASE.key, KEY, meta_key("c", 5), meta_key("c", 6)}
    assert garbage(before, after) == gone


def test_the_sweep_spares_what_is_needed_and_what_is_not_ours() -> None:
    newest = record(7, BASE, (SEGMENT, FIRST))
    keep = {
        BASE.key,
        KEY,
        meta_key("c", 5),
        meta_key("c", 7),
        # Somebody is ahead of us.
        meta_key("c", 8),
        "cells/c/meta/notes.txt",
        "cells/c/other",
        "cells/cc/state/x.seg",
    }
    gone = {meta_key("c", 4), meta_key("c", 6), "cells/c/state/b.seg", "cells/c/state/old.db"}
    assert unlisted(keep | gone, newest) == gone
