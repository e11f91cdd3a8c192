"""A durable book of what clients sent and what they were answered.

Each request is in the book, on the disk, before it is sent; its answer as soon as it is known. So
the book can be compared with what the fleet serves afterwards, whatever dies in between. A file
holds one client's lines, each a JSON object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.drills.nodes import wall

APPEND, SWAP, READ = "append", "swap", "read"

# There was no answer, or none in time.
NO_ANSWER = 0


@dataclass(slots=True)
class Entry:
    """One request and its answer.

    `what` is APPEND, SWAP or READ; `key` the seq that was appended, or the name of the value that
    was swapped in. `parent` names the value that it was to replace. Times are the wall clock's.
    `saw` is, for a read, the highest seq in the answer.
    """

    client: str
    run: str
    what: str
    key: str
    parent: str | None
    text: str
    node: str
    sent: float
    answered: float | None = None
    status: int = NO_ANSWER
    saw: int = 0

    @property
    def acknowledged(self) -> bool:
        return self.status == 200

    @property
    def seq(self) -> int:
        return int(self.key)


class Book:
    """What one client writes."""

    def __init__(self, path: Path, client: str, run: str) -> None:
        self._client = client
        self._run = run
        self._lines = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def sending(self, what: str, key: str, parent: str | None, text: str, node: str) -> int:
        """Note what is going to be sent. Returns the number of the line, for `answered`."""
        number = self._lines
        self._write(
            client=self._client,
            run=self._run,
            what=what,
            key=key,
            parent=parent,
            text=text,
            node=node,
            sent=wall(),
        )
        return number

    def answered(self, number: int, status: int, saw: int = 0) -> None:
        """Note the answer to line `number`."""
        self._write(to=number, answered=wall(), status=status, saw=saw)

    def _write(self, **fields: Any) -> None:
        os.write(self._file, json.dumps(fields).encode() + b"\n")
        os.fdatasync(self._file)
        self._lines += 1

    def close(self) -> None:
        os.close(self._file)


def read_books(folder: Path) -> list[Entry]:
    """All that clients wrote, in the order in which it was sent."""
    entries = [entry for path in sorted(folder.glob("*.jsonl")) for entry in _read(path)]
    return sorted(entries, key=lambda entry: entry.sent)


def _read(path: Path) -> Iterator[Entry]:
    entries: dict[int, Entry] = {}
    for number, line in enumerate(path.read_text().splitlines()):
        fields = json.loads(line)
        to = fields.pop("to", None)
        if to is None:
            entries[number] = Entry(**fields)
            continue
        for name, value in fields.items():
            setattr(entries[to], name, value)
    yield from entries.values()
