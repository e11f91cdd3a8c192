"""Which keys of an open cell changed since some revision, without an index and without a scan.

Operations note here what they write, before it is committed. A transaction that is rolled back
leaves its notes behind, with revisions that others then take: a note says that a key may have
changed, and the one who asks reads the rows and looks at their own revisions.

That no change is missed rests on the order of the notes. A row at revision r was noted at r, and
everything noted later, kept or rolled back, was noted above what was committed then, so at r or
above. A key noted again moves to the end. Going back from the end to the first note at or below
revision a therefore passes every row above a.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

# Some 5 MB of memory. What changed before these is left to a scan.
MAX_ENTRIES = 20_000

# What a row weighs beside its text, about.
_ROW = 32


class Changed(NamedTuple):
    """Keys that may have changed, oldest change first, and about how many bytes their rows hold."""

    seqs: list[int]
    keys: list[str]
    size: int


class ChangeLog:
    """The last changes of one open cell. Used in the thread that writes to the cell, and no other.

    It tells everything above its floor and nothing below. Sizes are in bytes.
    """

    __slots__ = ("_entries", "_floor", "_limit")

    def __init__(self, floor: int = 0, limit: int = MAX_ENTRIES) -> None:
        self._floor = floor
        self._limit = limit
        # Records by their seq, blobs by their key: a number never equals a text.
        self._entries: dict[int | str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def note_record(self, seq: int, rev: int, size: int) -> None:
        """A record of `size` bytes is written at revision `rev`."""
        entries = self._entries
        # Taken away first: a key that is there would keep its old place.
        entries.pop(seq, None)
        entries[seq] = (rev, size)
        if len(entries) > self._limit:
            self._forget_half()

    def note_blob(self, key: str, rev: int, size: int) -> None:
        """A blob of `size` bytes is written, or deleted (0), at revision `rev`."""
        entries = self._entries
        entries.pop(key, None)
        entries[key] = (rev, size)
        if len(entries) > self._limit:
            self._forget_half()

    def reset(self, rev: int) -> None:
        """Forget all, and that anything up to and including revision `rev` was ever known."""
        self._entries.clear()
        self._floor = rev

    def above(self, rev: int) -> Changed | None:
        """What may have changed after revision `rev`; None where only a scan can tell."""
        if rev < self._floor:
            return None
        seqs: list[int] = []
        keys: list[str] = []
        total = 0
        for key, (noted, size) in reversed(self._entries.items()):
            if noted <= rev:
                break
            if isinstance(key, int):
                seqs.append(key)
            else:
                keys.append(key)
            total += size + _ROW
        seqs.reverse()
        keys.reverse()
        return Changed(seqs, keys, total)

    def trim(self, rev: int) -> None:
        """Forget what changed up to and including revision `rev`: nobody will ask for it again."""
        self._floor = max(self._floor, rev)
        # Notes of what was rolled back may hide some others from this; they go a little later.
        old: list[int | str] = []
        for key, (noted, _) in self._entries.items():
            if noted > rev:
                break
            old.append(key)
        for key in old:
            del self._entries[key]

    def _forget_half(self) -> None:
        noted = self._floor
        for key in list(islice(self._entries, (len(self._entries) + 1) // 2)):
            noted, _ = self._entries.pop(key)
        # The last of them was noted at or above the revisions of all their rows.
        self._floor = max(self._floor, noted)
