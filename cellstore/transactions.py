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

from cellstore import schema
from cellstore.operations import Operation
from cellstore.schema import Counters


@dataclass(frozen=True, slots=True)
class Failure:
    """The outcome of an operation that raised; nothing of it was kept."""

    error: Exception


class Done(NamedTuple):
    """What an operation came to: its outcome, the cell's revision then, whether it made that."""

    outcome: Any
    revision: int
    changed: bool


def run_batch(
    connection: sqlite3.Connection, operations: Sequence[Operation], counters: Counters
) -> list[Done]:
    """Run operations in order, in one commit if all is well. Returns what each came to, in order.

    The counters follow what was committed. Errors of operations are outcomes, see Failure.
    """
    if len(operations) > 1:
        try:
            return _commit(connection, operations, counters)
        except Exception:  # noqa: BLE001, S110 - rolled back; run alone, each shows its own error
            pass
    done: list[Done] = []
    for operation in operations:
        try:
            done += _commit(connection, [operation], counters)
        except Exception as error:  # noqa: BLE001 - handed to the one who asked
            done.append(Done(Failure(error), counters.revision, changed=False))
    return done


def _commit(
    connection: sqlite3.Connection, operations: Sequence[Operation], counters: Counters
) -> list[Done]:
    before = (counters.revision, counters.position)
    writes = sum(operation.statements for operation in operations)
    # One statement is a transaction of its own; two more calls would cost a tenth of it. With a
    # neighbour it is not: what it wrote would stay when the other fails, and be done again.
    explicit = writes > 1 or (writes == 1 and (len(operations) > 1 or counters.saved))
    try:
        if not explicit:
            return [_apply(operation, connection, counters) for operation in operations]
        connection.execute("BEGIN IMMEDIATE")
        if counters.saved:
            schema.forget(connection)
        done = [_apply(operation, connection, counters) for operation in operations]
        connection.execute("COMMIT")
    except BaseException:
        counters.revision, counters.position = before
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    counters.saved = False
    return done


def _apply(operation: Operation, connection: sqlite3.Connection, counters: Counters) -> Done:
    before = counters.revision
    outcome = operation.apply(connection, counters)
    return Done(outcome, counters.revision, counters.revision != before)
