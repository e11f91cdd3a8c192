"""What SQLite's errors mean for the one who asked: no room, or a cell that cannot be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from cellstore.errors import CellBroken, CellstoreError, DiskFull

# A full disk shows under these names too: a WAL or its index cannot be made or grown.
_PERHAPS_FULL = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_UNREADABLE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


def translate(error: Exception, cell: str, is_full: Callable[[], bool]) -> Exception:
    """The error to raise for `error`, met while working on `cell`.

    `is_full` tells whether the disk has room, and is asked only where SQLite leaves that open.
    Errors that are not about files (a fault in this program) are returned as they are.
    """
    if isinstance(error, CellBroken):
        return type(error)(f"cell `{cell}` cannot be read: {error}")
    if isinstance(error, CellstoreError) or not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code in _PERHAPS_FULL and is_full()):
        return DiskFull(
            f"the disk is full: nothing was written to cell `{cell}`; make room and send it again"
        )
    if code in _UNREADABLE:
        return CellBroken(
            f"cell `{cell}` cannot be read: {error}; its files need repair, other cells are well"
        )
    return error
