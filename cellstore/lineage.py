"""What the next sync ships: the smallest delta, a merge of the last pieces, or a snapshot.

Pure: the newest record's base and pieces in, a decision out. A sync ships the rows above some
revision, so merging the last pieces into one is shipping from where the first of them started: it
downloads nothing. If this is wrong, a restore needs more objects than it can fetch, or each change
is uploaded over and over.

A piece's level is its `uploads`: how often the oldest of its changes was sent since the snapshot.
A merge is one level above the highest of what it merges, so levels never rise along the list.

- Being listed costs each record some bytes a piece, merging costs the pieces' bytes once. A run of
  pieces of one level is merged when its listing has cost as much as merging it will: that is never
  more than twice what the best choice, knowing the future, would have cost. Tiny deltas are thus
  merged about sixteen at a time and mostly inside the record, at no extra request; large ones are
  left alone, since a snapshot may come first.
- When the places are used up, the lowest levels that have enough pieces to make room are merged;
  where that would send as much as a snapshot, or nothing mergeable is left, a snapshot is made.
- When the pieces outweigh the base, and 1 MiB, a snapshot is made. Snapshots therefore double in
  size from one to the next while a cell only grows, and cost twice its data at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cellstore.epochs import Base, EpochRecord, Piece, cell_prefix, epoch_of, meta_key

# A restore fetches so many objects beside the base.
MAX_PIECES = 64

# How often a changed byte is sent between two snapshots.
MAX_UPLOADS = 4

# Below this, in compressed bytes, making snapshots more often would save nothing.
MIN_FOLD = 1024 * 1024

# Pieces that are merged at once; a smaller merge would use a level up for little.
_FAN_IN = 16

# What a listed piece costs in each record, in bytes.
_LISTED = 130

# What a small piece weighs beside its rows, and what rows are compressed to, about.
_ENVELOPE = 500
_RATIO = 3


@dataclass(frozen=True, slots=True)
class Ship:
    """Ship what changed after revision `start`, as one piece that follows `kept`."""

    start: int
    kept: tuple[Piece, ...]
    uploads: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Ship a snapshot, which takes the place of the base and all pieces."""


def plan(
    base: Base | None, pieces: tuple[Piece, ...], rev_now: int, estimate: int, cell_size: int
) -> Ship | Fold:
    """What the next sync ships, given what the newest record lists.

    `estimate` is how many bytes changed since, `cell_size` how many the cell's file has, both not
    compressed. Raises ValueError where there is nothing to ship.
    """
    published = _end(base, pieces)
    if rev_now <= published:
        raise ValueError(f"revision {rev_now} is not above {published}, which is published")
    delta = _ENVELOPE + estimate // _RATIO
    if sum(piece.size for piece in pieces) + delta > max(base.size if base else 0, MIN_FOLD):
        return Fold()
    for level in range(1, MAX_UPLOADS):
        tail = _tail(pieces, level)
        run = [piece.size for piece in tail if piece.uploads == level]
        # The first of a run was listed ever since, the last not yet. A piece of a higher level was
        # merged of so many that as many syncs passed until the next one.
        listing = _LISTED * len(run) ** 2 // 2 * _FAN_IN ** (level - 1)
        if len(run) >= _FAN_IN and sum(run) <= listing:
            return _merge(pieces, tail)
    if len(pieces) < MAX_PIECES:
        return Ship(published, pieces, 1)
    for level in range(1, MAX_UPLOADS):
        tail = _tail(pieces, level)
        if len(tail) >= _FAN_IN and len(pieces) - len(tail) < MAX_PIECES:
            dear = sum(piece.size for piece in tail) + delta >= cell_size // _RATIO
            return Fold() if dear else _merge(pieces, tail)
    return Fold()


def extend(
    ship: Ship,
    end: int,
    size: int,
    sha256: str,
    *,
    epoch: int | None = None,
    key: str | None = None,
) -> tuple[Piece, ...]:
    """The pieces of the next record, once what `ship` asked for goes up to revision `end`.

    It lies in the delta of the record `epoch`, or under `key`.
    """
    return (*ship.kept, Piece(epoch, key, ship.start, end, size, sha256, ship.uploads))


def after_fold(key: str, sha256: str, size: int, rev: int) -> tuple[Base, tuple[Piece, ...]]:
    """The base and pieces of the next record, once a snapshot lies under `key`."""
    return Base(key, sha256, size, rev), ()


def garbage(previous: EpochRecord, newest: EpochRecord) -> frozenset[str]:
    """The keys that nothing needs once `newest`, the record after `previous`, is settled."""
    keys = previous.keys | {meta_key(previous.cell, previous.epoch)}
    return keys - newest.keys - {meta_key(newest.cell, newest.epoch)}


def unlisted(listed: Iterable[str], newest: EpochRecord) -> frozenset[str]:
    """Which of the cell's objects, by their keys, `newest`, the newest record, does not need.

    Records later than it are none of them, nor is anything that is neither record nor state. What
    is just being uploaded, or listed by an attempt of unknown outcome, is for the caller to spare.
    """
    state = cell_prefix(newest.cell) + "state/"
    return frozenset(
        key
        for key in frozenset(listed) - newest.keys
        if key.startswith(state) or ((epoch := epoch_of(key)) is not None and epoch < newest.epoch)
    )


def _end(base: Base | None, pieces: tuple[Piece, ...]) -> int:
    if pieces:
        return pieces[-1].end
    return base.rev if base else 0


def _tail(pieces: tuple[Piece, ...], level: int) -> tuple[Piece, ...]:
    """The last pieces that are not above `level`."""
    count = len(pieces)
    while count and pieces[count - 1].uploads <= level:
        count -= 1
    return pieces[count:]


def _merge(pieces: tuple[Piece, ...], tail: tuple[Piece, ...]) -> Ship:
    """Merge the last pieces with what is new."""
    kept = pieces[: len(pieces) - len(tail)]
    return Ship(tail[0].start, kept, 1 + max(piece.uploads for piece in tail))
