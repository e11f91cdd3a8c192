"""The tables of a cell's database and the number of its format. See docs/storage-format.md.

`pos` is the key of `records`: reading in order needs no sort, and the next position is the end of
the tree, so appending costs the same however long the journal is. Every row carries the revision
that wrote it, and what is deleted leaves a tombstone or a mark: a replica that knows all up to
some revision can be brought up to date with the rows above it.
"""

from __future__ import annotations

import sqlite3

from cellstore.errors import CellBroken, NewerFormat

APPLICATION_ID = 0x63656C6C  # "cell"
FORMAT = 1

_TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (
    pos  INTEGER PRIMARY KEY,
    seq  INTEGER NOT NULL UNIQUE,
    rev  INTEGER NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX records_by_rev ON records (rev);
CREATE TABLE blobs (
    key  TEXT NOT NULL PRIMARY KEY,
    rev  INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX blobs_by_rev ON blobs (rev);
CREATE TABLE tombstones (
    key  TEXT NOT NULL PRIMARY KEY,
    rev  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tombstones_by_rev ON tombstones (rev);
CREATE TABLE marks (
    name TEXT NOT NULL PRIMARY KEY,
    rev  INTEGER NOT NULL
) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""

_REVISION = """
SELECT max(
    (SELECT ifnull(max(rev), 0) FROM records),
    (SELECT ifnull(max(rev), 0) FROM blobs),
    (SELECT ifnull(max(rev), 0) FROM tombstones),
    (SELECT ifnull(max(rev), 0) FROM marks)
)
"""


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database."""
    connection.executescript(_TABLES)


def create_if_empty(connection: sqlite3.Connection) -> None:
    """Make the tables unless there are some already."""
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
        create(connection)


def revision(connection: sqlite3.Connection) -> int:
    """The newest revision in the cell. Raises CellBroken or NewerFormat if this is no cell of ours."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        raise CellBroken("its file is not a cell: the application id is wrong; restore it")
    written = connection.execute("PRAGMA user_version").fetchone()[0]
    if written > FORMAT:
        raise NewerFormat(
            f"it has format {written} and this version reads up to {FORMAT}; upgrade the node"
        )
    newest: int = connection.execute(_REVISION).fetchone()[0]
    return newest
