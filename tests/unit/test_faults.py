"""What SQLite's errors are taken for."""

from __future__ import annotations

import sqlite3

import pytest

from cellstore.errors import CellBroken, CellstoreError, DiskFull, NewerFormat, Unavailable
from cellstore.faults import translate


def error(code: int) -> sqlite3.Error:
    made = sqlite3.OperationalError("what SQLite says")
    made.sqlite_errorcode = code
    return made


@pytest.mark.parametrize(
    ("code", "lack", "expected"),
    [
        (sqlite3.SQLITE_FULL, None, DiskFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, DiskFull("no room"), DiskFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, None, CellBroken),
        (sqlite3.SQLITE_CANTOPEN, DiskFull("no room"), DiskFull),
        (sqlite3.SQLITE_CANTOPEN, Unavailable("no descriptors"), Unavailable),
        (sqlite3.SQLITE_CANTOPEN, None, CellBroken),
        (sqlite3.SQLITE_CORRUPT, DiskFull("no room"), CellBroken),
        (sqlite3.SQLITE_NOTADB, None, CellBroken),
        (sqlite3.SQLITE_ERROR, None, CellBroken),
        (sqlite3.SQLITE_BUSY, None, Unavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, None, Unavailable),
    ],
)
def test_errors_of_files(
    code: int, lack: CellstoreError | None, expected: type[CellstoreError]
) -> None:
    fault = translate(error(code), "run-1", lambda: lack)
    assert type(fault) is expected
    assert "cell `run-1`" in str(fault)


@pytest.mark.parametrize(
    "code",
    [sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_NOMEM],
)
def test_errors_that_are_not_about_files_stay_as_they_are(code: int) -> None:
    made = error(code)
    assert translate(made, "run-1", lambda: None) is made


def test_other_errors() -> None:
    bug = RuntimeError("a bug")
    assert translate(bug, "run-1", lambda: None) is bug
    text = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")
    assert type(translate(text, "run-1", lambda: None)) is CellBroken
    newer = translate(NewerFormat("it has format 2"), "run-1", lambda: None)
    assert type(newer) is NewerFormat
    assert str(newer) == "cell `run-1` cannot be read: it has format 2"
