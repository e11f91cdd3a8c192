"""The least that SQLite costs: the same statements in a plain loop, with no server around them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.requests import BLOB_KEY, blob_bytes, record

_TABLES = """
CREATE TABLE records (
    seq INTEGER PRIMARY KEY, pos INTEGER NOT NULL, rev INTEGER NOT NULL, data TEXT NOT NULL
);
CREATE TABLE blobs (key TEXT NOT NULL PRIMARY KEY, rev INTEGER NOT NULL, data BLOB NOT NULL);
"""
_APPEND = (
    "INSERT INTO records (seq, pos, rev, data) VALUES (?, ?, ?, CAST(? AS TEXT)) "
    "ON CONFLICT (seq) DO UPDATE SET rev = excluded.rev, data = excluded.data"
)
_PUT = (
    "INSERT INTO blobs (key, rev, data) VALUES (?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET rev = excluded.rev, data = excluded.data"
)


class Bare:
    """Databases without a server, one a run. Every commit is on the disk when it returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._open: dict[str, sqlite3.Connection] = {}

    def append(self, run: str, start: int, count: int) -> list[float]:
        """Append records, a commit each. Returns the seconds that each took."""
        connection = self._connection(run)
        rows = [(seq, seq, seq, record(seq)) for seq in range(start, start + count)]
        return list(_timed(connection, _APPEND, rows))

    def append_in_turn(self, runs: list[str], count: int) -> float:
        """Append `count` records to each run, taking turns. Returns commits per second."""
        connections = [self._connection(run) for run in runs]
        rows = [(seq, seq, seq, record(seq)) for seq in range(1, count + 1)]
        started = perf_counter()
        for row in rows:
            for connection in connections:
                connection.execute(_APPEND, row)
        return len(runs) * count / (perf_counter() - started)

    def put(self, run: str, start: int, count: int) -> list[float]:
        """Replace one blob again and again. Returns the seconds that each took."""
        rows = [(BLOB_KEY, n, blob_bytes(n)) for n in range(start, start + count)]
        return list(_timed(self._connection(run), _PUT, rows))

    def read(self, run: str) -> float:
        """Read a whole journal. Returns the seconds it took."""
        connection = self._connection(run)
        started = perf_counter()
        texts = connection.execute("SELECT data FROM records ORDER BY pos").fetchall()
        b"[" + b",".join([text for (text,) in texts]) + b"]"
        return perf_counter() - started

    def wake(self, runs: list[str]) -> list[float]:
        """Open closed databases and read a blob of each. Returns the seconds that each took."""
        latencies = []
        for run in runs:
            started = perf_counter()
            connection = self._connection(run)
            connection.execute("SELECT data FROM blobs WHERE key = ?", (BLOB_KEY,)).fetchone()
            latencies.append(perf_counter() - started)
        return latencies

    def close(self) -> None:
        """Close every database; they are opened again when they are needed."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def _connection(self, run: str) -> sqlite3.Connection:
        connection = self._open.get(run)
        if connection is None:
            path = self._folder / f"{run}.db"
            fresh = not path.exists()
            connection = sqlite3.connect(path, isolation_level=None)
            connection.text_factory = bytes
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if fresh:
                connection.executescript(_TABLES)
            self._open[run] = connection
        return connection


def p50(latencies: Iterable[float]) -> float:
    """Their median, in milliseconds."""
    return median(latencies) * 1e3


def _timed(
    connection: sqlite3.Connection, statement: str, rows: Iterable[tuple[object, ...]]
) -> Iterator[float]:
    for row in rows:
        started = perf_counter()
        connection.execute(statement, row)
        yield perf_counter() - started
