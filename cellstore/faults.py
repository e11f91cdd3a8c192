"""What SQLite's errors mean for the one who asked: a shortage, or a cell that cannot be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from cellstore.errors import CellBroken, CellstoreError, DiskFull, Unavailable

# A shortage of room or of descriptors shows under these names too.
_PERHAPS_SHORT = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}

# Faults of a request or of this program; the files have nothing to do with them.
_NOT_THE_FILES = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_MISUSE,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_TOOBIG,
}

Shortage = Callable[[], CellstoreError | None]


def translate(error: Exception, cell: str, shortage: Shortage) -> Exception:
    """The error to raise for `error`, met while working on `cell`.

    `shortage` tells what there is not enough of, if anything, and is asked only where SQLite
    leaves that open. Errors that are not about files are returned as they are.
    """
    if isinstance(error, CellBroken):
        return type(error)(f"cell `{cell}` cannot be read: {error}")
    if isinstance(error, UnicodeDecodeError):
        return _broken(cell, "it holds text that is not UTF-8")
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return error
    code &= 0xFF
    if code == sqlite3.SQLITE_FULL:
        return _named(DiskFull(""), cell)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"cell `{cell}` is held by another program; send it again")
    if code in _NOT_THE_FILES:
        return error
    if code in _PERHAPS_SHORT and (lack := shortage()) is not None:
        return _named(lack, cell)
    return _broken(cell, str(error))


def _named(lack: CellstoreError, cell: str) -> CellstoreError:
    if isinstance(lack, DiskFull):
        return DiskFull(
            f"the disk is full: nothing was written to cell `{cell}`; make room and send it again"
        )
    return type(lack)(f"cell `{cell}`: {lack}")


def _broken(cell: str, reason: str) -> CellBroken:
    return CellBroken(
        f"cell `{cell}` cannot be read: {reason}; its files need repair, other cells are well"
    )
