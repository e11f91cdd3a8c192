"""How the operations that wait for one cell are committed together.

One commit serves all of them. If anything fails in it, SQLite may have rolled back the whole
transaction (a full disk does that, savepoints included), so each is then run again on its own:
a write that fails takes no neighbour with it, and none is answered before its own commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cellstore.operations import Operation


@dataclass(frozen=True, slots=True)
class Failure:
    """The outcome of an operation that raised; nothing of it was kept."""

    error: Exception


class Committed(NamedTuple):
    """The cell's revision after a batch, and the outcome of each of its operations in order."""

    revision: int
    outcomes: list[Any]


def run_batch(
    connection: sqlite3.Connection, operations: Sequence[Operation], revision: int
) -> Committed:
    """Run operations in order, in one commit if all is well. Their errors are outcomes."""
    if len(operations) > 1:
        try:
            return _together(connection, operations, revision)
        except Exception:  # noqa: BLE001 - whatever it was, the rerun tells whose it is
            _roll_back(connection)
    outcomes = []
    for operation in operations:
        revision, outcome = _alone(connection, operation, revision)
        outcomes.append(outcome)
    return Committed(revision, outcomes)


def _together(
    connection: sqlite3.Connection, operations: Sequence[Operation], revision: int
) -> Committed:
    writes = sum(operation.statements for operation in operations)
    if writes > 1:
        connection.execute("BEGIN IMMEDIATE")
    outcomes = []
    for operation in operations:
        before = connection.total_changes
        outcomes.append(operation.apply(connection, revision + 1))
        revision += connection.total_changes != before
    if writes > 1:
        connection.execute("COMMIT")
    return Committed(revision, outcomes)


def _alone(
    connection: sqlite3.Connection, operation: Operation, revision: int
) -> tuple[int, Any]:
    # A single statement is a transaction of its own; two more calls would cost a tenth of it.
    explicit = operation.statements > 1
    before = connection.total_changes
    try:
        if explicit:
            connection.execute("BEGIN IMMEDIATE")
        outcome = operation.apply(connection, revision + 1)
        if explicit:
            connection.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 - handed to the one who asked, never swallowed
        _roll_back(connection)
        return revision, Failure(error)
    return revision + (connection.total_changes != before), outcome


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
