"""The clients of a drill, each a thread with a book of its own.

They do what the runtime does: one request at a time, one hop after a 409. What has no certain
outcome is sent again, the same bytes, until it has one.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from random import Random  # noqa: TID251

from deploy.drills.ledger import APPEND, NO_ANSWER, READ, SWAP, Book
from deploy.drills.nodes import Node
from tests.support.client import Answer, Client

COUNTER = "counter.json"

# How long a real client waits for an answer. Those of most drills are less patient, so that a
# paused node costs them less of the drill's time.
REAL_PATIENCE, PATIENCE = 30.0, 8.0

# What a client may be answered; anything else is a fault of the node.
EXPECTED = {NO_ANSWER, 200, 404, 409, 412, 503}


class Outcome(Enum):
    DONE = "done"
    REFUSED = "certainly not done"
    UNKNOWN = "may be done"
    FAILED = "its condition did not hold"


class Courier:
    """One client's way to the fleet. Begins with the node `at`, waits `patience` for an answer."""

    def __init__(
        self, nodes: Sequence[Node], book: Book, rng: Random, at: int, patience: float
    ) -> None:
        self._nodes = list(nodes)
        self._clients: dict[str, Client] = {}
        self._book = book
        self._rng = rng
        self._patience = patience
        self._at = at % len(self._nodes)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._book.close()

    def write(
        self,
        what: str,
        key: str,
        parent: str | None,
        text: str,
        request: tuple[str, str, str],
        headers: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Send a write of `text`, and once more where a 409 points to.

        Stays with the node that took it.
        """
        answer = self._send(self._nodes[self._at], what, key, parent, text, request, headers)
        if answer is not None and answer.status == 409:
            owner = answer.json().get("owner_url")
            known = [number for number, node in enumerate(self._nodes) if node.url == owner]
            if known and known[0] != self._at:
                self._at = known[0]
                answer = self._send(
                    self._nodes[self._at], what, key, parent, text, request, headers
                )
        status = NO_ANSWER if answer is None else answer.status
        if status == 200:
            return Outcome.DONE
        if status == 412:
            return Outcome.FAILED
        self._at = (self._at + 1) % len(self._nodes)
        return Outcome.REFUSED if status == 409 else Outcome.UNKNOWN

    def read(self, path: str) -> Answer | None:
        """Read from any node, wherever that leads; None unless it is 200 or 404."""
        answer = self._send(self._rng.choice(self._nodes), READ, "", None, "", ("GET", path, ""))
        return answer if answer is not None and answer.status in {200, 404} else None

    def _send(
        self,
        node: Node,
        what: str,
        key: str,
        parent: str | None,
        text: str,
        request: tuple[str, str, str],
        headers: Mapping[str, str] | None = None,
    ) -> Answer | None:
        client = self._clients.get(node.name)
        if client is None:
            client = self._clients[node.name] = Client(
                node.url, timeout=self._patience, retry=False
            )
        method, path, body = request
        number = self._book.sending(what, key, parent, text, node.name)
        try:
            answer = client.request(method, path, body, headers)
        except (OSError, http.client.HTTPException):
            client.close()
            self._book.answered(number, NO_ANSWER)
            return None
        saw = 0
        if method == "GET" and path.endswith("/records") and answer.status == 200:
            saw = max(record["seq"] for record in answer.json())
        self._book.answered(number, answer.status, saw)
        return answer


class Party(threading.Thread):
    """A client of one run. `done` counts what it got acknowledged."""

    def __init__(self, name: str, run: str, courier: Courier, rng: Random, pace: float) -> None:
        super().__init__(name=name, daemon=True)
        self.client = name
        self.done = 0
        self.fault: BaseException | None = None
        self._run_path = f"/runs/{run}"
        self._courier = courier
        self._rng = rng
        self._pace = pace
        self._leaving = threading.Event()

    def leave(self) -> None:
        """Have it stop after what it is at."""
        self._leaving.set()

    def run(self) -> None:
        try:
            while not self._leaving.is_set():
                self.step()
                self._rest(self._pace)
        except BaseException as fault:  # noqa: BLE001 - told to whoever waits for the thread
            self.fault = fault
        finally:
            self._courier.close()

    def step(self) -> None:
        raise NotImplementedError

    def _rest(self, seconds: float) -> None:
        self._leaving.wait(seconds * self._rng.uniform(0.5, 1.5))


class Appender(Party):
    """Appends records of ever new seqs, each until it is acknowledged.

    Some that were certainly not done it gives up, and goes on with the next seq: those must never
    appear.
    """

    bulk = 8
    # With each so manieth record it replaces the journal by all that was acknowledged and that one.
    compaction = 10**9
    _seq = 0

    def __init__(self, name: str, run: str, courier: Courier, rng: Random, pace: float) -> None:
        super().__init__(name, run, courier, rng, pace)
        self._journal: list[str] = []

    def step(self) -> None:
        self._seq += 1
        data = self._rng.randbytes(self.bulk).hex()
        text = json.dumps({"seq": self._seq, "by": self.client, "data": data})
        request = ("POST", f"{self._run_path}/records", text)
        if self._seq % self.compaction == 0:
            whole = f"[{', '.join([*self._journal, text])}]"
            request = ("PUT", f"{self._run_path}/records", whole)
        certain = True
        while not self._leaving.is_set():
            outcome = self._courier.write(APPEND, str(self._seq), None, text, request)
            if outcome is Outcome.DONE:
                self._journal.append(text)
                self.done += 1
                return
            certain = certain and outcome is Outcome.REFUSED
            if certain and self._rng.random() < 0.25:
                return
            self._rest(0.2)


class BulkyAppender(Appender):
    """An appender of records that make segments and snapshots of their own."""

    bulk = 4096


class CompactingAppender(Appender):
    """An appender that replaces its journal now and then, and so brings back what was lost."""

    compaction = 40


class Swapper(Party):
    """Swaps a new value in for the one that it read, as a lease is taken.

    Each value names the one that it replaced, so what the fleet holds in the end tells all swaps
    that ever counted.
    """

    _number = 0

    def step(self) -> None:
        path = f"{self._run_path}/blobs/{COUNTER}"
        found = self._courier.read(path)
        if found is None:
            return
        parent, condition = None, {"If-None-Match": "*"}
        if found.status == 200:
            parent = found.json()["id"]
            tag = hashlib.sha256(found.body).hexdigest()
            condition = {"If-Match": f'"{tag}"'}
        self._number += 1
        key = f"{self.client}-{self._number}"
        text = json.dumps({"id": key, "parent": parent})
        while not self._leaving.is_set():
            outcome = self._courier.write(SWAP, key, parent, text, ("PUT", path, text), condition)
            if outcome is Outcome.DONE:
                self.done += 1
            if outcome is not Outcome.UNKNOWN:
                # One that may be done is sent again; if it was, its condition has failed by now.
                return
            self._rest(0.2)


class Reader(Party):
    """Reads a journal from any node, owner or not."""

    def step(self) -> None:
        if self._courier.read(f"{self._run_path}/records") is not None:
            self.done += 1


def crowd(
    nodes: Sequence[Node],
    books: Path,
    runs: Sequence[str],
    rng: Random,
    pace: float,
    patience: float,
) -> list[Party]:
    """An appender for each run, and for every third two rivals that swap and a reader."""
    books.mkdir()
    parties: list[Party] = []

    def add(kind: type[Party], run: str, number: int, slowness: float = 1.0) -> None:
        name = f"{kind.__name__.lower()}-{run}-{number}"
        own = Random(rng.getrandbits(64))
        book = Book(books / f"{name}.jsonl", name, run)
        courier = Courier(nodes, book, own, number, patience)
        parties.append(kind(name, run, courier, own, pace * slowness))

    for number, run in enumerate(runs):
        add((Appender, BulkyAppender, CompactingAppender)[number % 3], run, number)
        if number % 3 == 0:
            add(Swapper, run, number)
            add(Swapper, run, number + 1)
            add(Reader, run, number, 2.0)
    return parties
