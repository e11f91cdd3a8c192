"""What a cell should hold: every change makes a version of it, and each version has one parent.

The model of a cell is written here once more, without SQLite. A history without a fault is one
line of versions; a branch is where writes were lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from cellstore.operations import (
    Append,
    DeleteBlob,
    ListBlobs,
    PutBlob,
    ReadBlob,
    ReadRecords,
    Replace,
    Touch,
)

Entry = tuple[int, bytes]


class State(NamedTuple):
    """A cell's journal in the order of its positions, and its blobs."""

    journal: tuple[Entry, ...]
    blobs: dict[str, bytes]


EMPTY = State((), {})


class Version:
    """A cell at one revision. `origin` says which attempt of which client made it."""

    __slots__ = ("acked", "origin", "parent", "published", "refused", "rev", "state")

    def __init__(self, rev: int, parent: Version | None, state: State, origin: str) -> None:
        self.rev = rev
        self.parent = parent
        self.state = state
        self.origin = origin
        self.acked = False
        self.published = False
        # It was answered that this is not done.
        self.refused = False

    def __repr__(self) -> str:
        return f"r{self.rev}({self.origin})"

    def under(self, other: Version) -> bool:
        """Whether `other` is this version or one that it came from."""
        at: Version | None = self
        while at is not None and at.rev > other.rev:
            at = at.parent
        return at is other

    def down_to(self, other: Version) -> Iterator[Version]:
        """This version and those that it came from, as long as `other` did not come from them."""
        at: Version | None = self
        while at is not None and not other.under(at):
            yield at
            at = at.parent


def after(state: State, operation: Any) -> tuple[State | None, Any]:
    """The state that an operation leads to, None where it changes nothing, and its outcome."""
    match operation:
        case Append(record=record):
            return _append(state, record.seq, record.text), None
        case Replace(records=records):
            return State(tuple((seq, text) for seq, text in records), state.blobs), None
        case PutBlob(key=key, data=data, condition=condition):
            held = state.blobs.get(key)
            if condition is not None and not condition.holds(held):
                return None, False
            if held == data:
                return None, True
            return State(state.journal, state.blobs | {key: data}), True
        case DeleteBlob(key=key, condition=condition):
            held = state.blobs.get(key)
            if condition is not None and not condition.holds(held):
                return None, False
            if held is None:
                return None, True
            left = {name: data for name, data in state.blobs.items() if name != key}
            return State(state.journal, left), True
        case ReadRecords():
            texts = b",".join(text for _, text in state.journal)
            return None, (b"[" + texts + b"]" if state.journal else None)
        case ReadBlob(key=key):
            return None, state.blobs.get(key)
        case ListBlobs():
            return None, sorted(state.blobs)
        case Touch():
            return None, None
    raise AssertionError(f"no model of {operation}")


def _append(state: State, seq: int, text: bytes) -> State | None:
    for place, (known, held) in enumerate(state.journal):
        if known == seq:
            if held == text:
                return None
            journal = (*state.journal[:place], (seq, text), *state.journal[place + 1 :])
            return State(journal, state.blobs)
    return State((*state.journal, (seq, text)), state.blobs)


def plain(operation: Any, outcome: Any) -> Any:
    """An outcome in the form that the model has."""
    if isinstance(operation, ReadRecords) and outcome is not None:
        return b"".join(outcome)
    if isinstance(operation, ReadBlob) and outcome is not None:
        return outcome.data
    if isinstance(operation, ListBlobs):
        return list(outcome)
    return outcome
