"""The tables of a cell's database and the number of its format. See docs/storage-format.md.

Every row carries the revision that wrote it, and what is deleted leaves a tombstone (a blob
without data) or a mark: a replica that knows all up to some revision can be brought up to date with
the rows above it.

No column but the keys is indexed, so an append changes one page. The price is paid at opening: the
newest revision and the next position are found by a scan, unless the cell was closed cleanly and
`counters` tells them. The first write after opening takes that row away in its own transaction.
The mark `pruned` stands in for tombstones that were taken away, so that a scan finds no lower
revision than there was.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from cellstore.changes import ChangeLog
from cellstore.errors import CellBroken, NewerFormat

APPLICATION_ID = 0x63656C6C  # "cell"
FORMAT = 1

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (
    seq  INTEGER PRIMARY KEY,
    pos  INTEGER NOT NULL,
    rev  INTEGER NOT NULL,
    data TEXT NOT NULL
);
CREATE TABLE blobs (
    key  TEXT NOT NULL PRIMARY KEY,
    rev  INTEGER NOT NULL,
    data BLOB
);
CREATE TABLE marks (
    name TEXT NOT NULL PRIMARY KEY,
    rev  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE counters (
    revision INTEGER NOT NULL,
    position INTEGER NOT NULL
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""

_SCAN = """
SELECT
    max(
        (SELECT ifnull(max(rev), 0) FROM records),
        (SELECT ifnull(max(rev), 0) FROM blobs),
        (SELECT ifnull(max(rev), 0) FROM marks)
    ),
    (SELECT ifnull(max(pos), -1) + 1 FROM records)
"""


@dataclass(slots=True)
class Counters:
    """Where a cell stands: its newest revision and the position of the next new record.

    `saved` says whether the database holds a row that tells both. `changes` are the keys that
    changed since it was opened.
    """

    revision: int = 0
    position: int = 0
    saved: bool = False
    changes: ChangeLog = field(default_factory=ChangeLog, compare=False, repr=False)


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database."""
    connection.executescript(_TABLES)


def load(connection: sqlite3.Connection) -> Counters:
    """Where the cell stands. Raises CellBroken or NewerFormat if this is no cell of ours."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        raise CellBroken("its file is not a cell: the application id is wrong; restore it")
    written = connection.execute("PRAGMA user_version").fetchone()[0]
    if written > FORMAT:
        raise NewerFormat(
            f"it has format {written} and this version reads up to {FORMAT}; upgrade the node"
        )
    saved = connection.execute("SELECT revision, position FROM counters").fetchone()
    revision, position = saved or scan(connection)
    return Counters(revision, position, saved is not None, ChangeLog(revision))


def scan(connection: sqlite3.Connection) -> tuple[int, int]:
    """The newest revision and the next position that the rows tell of."""
    revision, position = connection.execute(_SCAN).fetchone()
    return revision, position


def save(connection: sqlite3.Connection, counters: Counters) -> None:
    """Keep the counters for the next opening. Nothing may be written before `forget`."""
    if not counters.saved:
        connection.execute(
            "INSERT INTO counters (revision, position) VALUES (?, ?)",
            (counters.revision, counters.position),
        )
        counters.saved = True


def forget(connection: sqlite3.Connection) -> None:
    """Take the kept counters away, in the transaction of the first write."""
    connection.execute("DELETE FROM counters")


def file_size(connection: sqlite3.Connection) -> int:
    """Bytes of the cell's file, which bound what is in it."""
    pages, page_size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
    )
    return int(pages * page_size)
