"""What a request may do to one cell: pure, synchronous, on an open SQLite connection.

An operation is handed the connection and the cell's counters, and returns its outcome. Where it
changes anything, its rows carry the next revision, it counts that on and notes the keys. It never
commits: `transactions.py` decides that. `absent` is its outcome where the cell does not exist;
CREATES stands for operations that bring the cell into being instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from operator import lt
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from cellstore import schema
from cellstore.conditions import Condition, digest
from cellstore.records import Record
from cellstore.schema import Counters

CREATES: Final = object()

# Rows of a journal are read and handed on this many at a time.
_ROWS = 256


class Operation(Protocol):
    """One request of one cell. `statements` tells whether it writes in none, one or several."""

    statements: ClassVar[int]

    @property
    def absent(self) -> Any: ...

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> Any: ...


@dataclass(frozen=True, slots=True)
class Oversize:
    """The outcome of a read that found more bytes than it was allowed to bring into memory.

    `size` is a limit with which it would have been served.
    """

    size: int


class Blob(NamedTuple):
    """A blob's bytes and its entity tag, the lowercase hex SHA-256 of them."""

    data: bytes
    tag: str


@dataclass(frozen=True, slots=True)
class Touch:
    """Do nothing: the cell is to be brought up. Outcome: None."""

    statements: ClassVar[int] = 0
    absent: ClassVar[None] = None

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> None:
        """Nothing is read and nothing is written."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append a record, or replace the one with its `seq` where it stands. Outcome: None."""

    record: Record
    statements: ClassVar[int] = 1
    absent: ClassVar[object] = CREATES

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> None:
        # The same text again changes nothing. A seq that is there keeps its position.
        written = connection.execute(
            "INSERT INTO records (seq, pos, rev, data) VALUES (?, ?, ?, CAST(? AS TEXT)) "
            "ON CONFLICT (seq) DO UPDATE SET rev = excluded.rev, data = excluded.data "
            "WHERE data IS NOT excluded.data",
            (self.record.seq, counters.position, counters.revision + 1, self.record.text),
        )
        if written.rowcount:
            counters.revision += 1
            counters.position += 1
            counters.changes.note_record(self.record.seq, counters.revision, len(self.record.text))


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the whole journal; positions count from 0. Outcome: None."""

    records: Sequence[Record]
    statements: ClassVar[int] = 2
    absent: ClassVar[object] = CREATES

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> None:
        revision = counters.revision + 1
        connection.execute("DELETE FROM records")
        connection.execute(
            "INSERT OR REPLACE INTO marks (name, rev) VALUES ('records', ?)", (revision,)
        )
        connection.executemany(
            "INSERT INTO records (seq, pos, rev, data) VALUES (?, ?, ?, CAST(? AS TEXT))",
            ((seq, pos, revision, text) for pos, (seq, text) in enumerate(self.records)),
        )
        counters.revision = revision
        counters.position = len(self.records)
        # What is gone has no key to note.
        counters.changes.reset(revision)


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Read the journal in order. Outcome: its JSON text in chunks, None when it is empty."""

    limit: int
    statements: ClassVar[int] = 0
    absent: ClassVar[None] = None

    def apply(
        self, connection: sqlite3.Connection, counters: Counters
    ) -> list[bytes] | Oversize | None:
        # The file's size bounds what is in it, and is known without reading.
        if (size := schema.file_size(connection)) > self.limit:
            return Oversize(size)
        rows = connection.execute("SELECT pos, data FROM records ORDER BY seq")
        return _json_array(_in_order(rows) or _sorted(connection))


@dataclass(frozen=True, slots=True)
class ListBlobs:
    """Read the blob keys. Outcome: the keys, sorted by their UTF-8 bytes."""

    statements: ClassVar[int] = 0
    absent: ClassVar[tuple[str, ...]] = ()

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> list[str]:
        rows = connection.execute("SELECT key FROM blobs WHERE data IS NOT NULL ORDER BY key")
        return [key.decode("utf-8") for (key,) in rows]


@dataclass(frozen=True, slots=True)
class ReadBlobs:
    """Read all blobs, JSON texts, by key. Outcome: an array in chunks, None when there is none."""

    limit: int
    statements: ClassVar[int] = 0
    absent: ClassVar[None] = None

    def apply(
        self, connection: sqlite3.Connection, counters: Counters
    ) -> list[bytes] | Oversize | None:
        if (size := schema.file_size(connection)) > self.limit:
            return Oversize(size)
        blobs = connection.execute(
            "SELECT data FROM blobs WHERE data IS NOT NULL ORDER BY key"
        ).fetchall()
        return _json_array([b",".join(data for (data,) in blobs)] if blobs else [])


@dataclass(frozen=True, slots=True)
class ReadBlob:
    """Read one blob. Outcome: the blob, None when it is absent."""

    key: str
    limit: int
    statements: ClassVar[int] = 0
    absent: ClassVar[None] = None

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> Blob | Oversize | None:
        size = connection.execute(
            "SELECT length(data) FROM blobs WHERE key = ?", (self.key,)
        ).fetchone()
        if size is None or size[0] is None:
            return None
        if size[0] > self.limit:
            return Oversize(size[0])
        data = _blob(connection, self.key)
        return None if data is None else Blob(data, digest(data))


@dataclass(frozen=True, slots=True)
class PutBlob:
    """Write one blob. Outcome: whether the condition held, and so whether it was written."""

    key: str
    data: bytes
    condition: Condition | None = None
    statements: ClassVar[int] = 1

    @property
    def absent(self) -> Any:
        return CREATES if self.condition is None or self.condition.holds(None) else False

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> bool:
        if self.condition is not None and not self.condition.holds(_blob(connection, self.key)):
            return False
        written = connection.execute(
            "INSERT INTO blobs (key, rev, data) VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET rev = excluded.rev, data = excluded.data "
            "WHERE data IS NOT excluded.data",
            (self.key, counters.revision + 1, self.data),
        )
        if written.rowcount:
            counters.revision += 1
            counters.changes.note_blob(self.key, counters.revision, len(self.data))
        return True


@dataclass(frozen=True, slots=True)
class DeleteBlob:
    """Delete one blob, whose row stays as its tombstone. Outcome: whether the condition held."""

    key: str
    condition: Condition | None = None
    statements: ClassVar[int] = 1

    @property
    def absent(self) -> bool:
        return self.condition is None or self.condition.holds(None)

    def apply(self, connection: sqlite3.Connection, counters: Counters) -> bool:
        if self.condition is not None and not self.condition.holds(_blob(connection, self.key)):
            return False
        deleted = connection.execute(
            "UPDATE blobs SET rev = ?, data = NULL WHERE key = ? AND data IS NOT NULL",
            (counters.revision + 1, self.key),
        )
        if deleted.rowcount:
            counters.revision += 1
            counters.changes.note_blob(self.key, counters.revision, 0)
        return True


def _in_order(rows: sqlite3.Cursor) -> list[bytes] | None:
    """The texts of rows of position and text, joined by commas in chunks; None if out of order.

    Mostly the order of the keys is that of the positions. Asking SQLite for the latter would make
    it sort the texts.
    """
    chunks: list[bytes] = []
    last = -1
    while batch := rows.fetchmany(_ROWS):
        positions, texts = zip(*batch, strict=True)
        if positions[0] <= last or not all(map(lt, positions, positions[1:])):
            return None
        last = positions[-1]
        chunks.append(b",".join(texts))
    return chunks


def _sorted(connection: sqlite3.Connection) -> list[bytes]:
    """As `_in_order`, by sorting the keys; also of no rows."""
    order = sorted(connection.execute("SELECT pos, seq FROM records"))
    return [
        connection.execute("SELECT data FROM records WHERE seq = ?", (seq,)).fetchone()[0]
        for _, seq in order
    ]


def _json_array(chunks: list[bytes]) -> list[bytes] | None:
    """Chunks of joined texts as a JSON array, in chunks; None of none."""
    if not chunks:
        return None
    parts = [b"[", chunks[0]]
    for chunk in chunks[1:]:
        parts += (b",", chunk)
    parts.append(b"]")
    return parts


def _blob(connection: sqlite3.Connection, key: str) -> bytes | None:
    row = connection.execute("SELECT data FROM blobs WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]
