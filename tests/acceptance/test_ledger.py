"""Eight runs append while the node is killed again and again: nothing is lost, nothing doubled.

The ledger notes each write before it is sent and again when it was acknowledged. Afterwards every
acknowledged write must be there exactly once, every other one at most once.
"""

from __future__ import annotations

import json
import os
import random  # noqa: TID251
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.client import Client, record
from tests.support.processes import free_port, node, wait_for

RUNS = 8
KILLS = int(os.environ.get("CELLSTORE_LEDGER_KILLS", "50"))
TOKEN = "ledger"


@dataclass
class Ledger:
    """What one run's client sent, and what was acknowledged."""

    run: str
    sent: dict[int, str] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    # Journals replaced as a whole: what a PUT would leave, and whether it was acknowledged.
    blobs_sent: dict[str, list[bytes]] = field(default_factory=dict)
    blobs_acknowledged: dict[str, bytes] = field(default_factory=dict)


def append_until(stop: threading.Event, url: str, ledger: Ledger) -> None:
    """Append records of ever new seqs, each once, replacing the journal now and then."""
    client = Client(url, TOKEN, timeout=10, retry=False)
    seq = 0
    while not stop.is_set():
        seq += 1
        text = record(seq, nonce=f"{ledger.run}-{seq}")
        ledger.sent[seq] = text
        try:
            if seq % 50 == 0:
                # A compaction: the whole journal, with one more record, in one PUT.
                journal = [t for s, t in sorted(ledger.sent.items()) if s in ledger.acknowledged]
                answer = client.put(f"{ledger.run}/records", f"[{','.join([*journal, text])}]")
            else:
                answer = client.post(f"{ledger.run}/records", text)
            if answer.status == 200:
                ledger.acknowledged.add(seq)
            key, data = f"k{seq % 5}", b"%d" % seq * 500
            ledger.blobs_sent.setdefault(key, []).append(data)
            if client.put(f"{ledger.run}/blobs/{key}", data).status == 200:
                ledger.blobs_acknowledged[key] = data
                ledger.blobs_sent[key] = [data]
        except OSError:
            # Killed: the outcome is unknown. A client would start again; here, with the next seq.
            continue
    client.close()


def test_kill_after_kill(tmp_path: Path, report: Callable[[str], None]) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    port = free_port()
    ledgers = [Ledger(f"/runs/run-{number}") for number in range(RUNS)]
    stop = threading.Event()
    threads = [
        threading.Thread(target=append_until, args=(stop, f"http://127.0.0.1:{port}", ledger))
        for ledger in ledgers
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            with node(tmp_path / "data", token=TOKEN, port=port) as process:
                await_more(ledgers, chance.randrange(400))
                process.kill()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    with node(tmp_path / "data", token=TOKEN, port=port) as process:
        with Client(process.url, TOKEN) as client:
            for ledger in ledgers:
                check(client, ledger, seed)
        assert process.stop() == 0
    databases = list(tmp_path.glob("data/cells/*/*/cell.db"))
    assert len(databases) == RUNS
    for path in databases:
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        # No two records stand in one place, and no two changes have one revision.
        rows, places = connection.execute(
            "SELECT count(*), count(DISTINCT pos) FROM records"
        ).fetchone()
        assert rows == places
        # All rows of a replaced journal share one, that of its mark.
        revisions = connection.execute(
            "SELECT rev FROM records WHERE rev > (SELECT ifnull(max(rev), 0) FROM marks) "
            "UNION ALL SELECT rev FROM blobs"
        ).fetchall()
        assert len(revisions) == len(set(revisions))
        connection.close()
    total = sum(len(ledger.acknowledged) for ledger in ledgers)
    report(f"{KILLS} kills, {total} acknowledged records, none lost, none doubled (seed {seed})")


def await_more(ledgers: list[Ledger], count: int) -> None:
    """Wait until `count` more writes were acknowledged."""

    def acknowledged() -> int:
        return sum(len(ledger.acknowledged) for ledger in ledgers)

    goal = acknowledged() + count
    wait_for(lambda: acknowledged() >= goal, "acknowledgements")


def check(client: Client, ledger: Ledger, seed: int) -> None:
    stored = client.get(f"{ledger.run}/records").json()
    times = Counter(entry["seq"] for entry in stored)
    assert max(times.values()) == 1, f"doubled in {ledger.run}, seed {seed}"
    lost = ledger.acknowledged - set(times)
    assert not lost, f"lost in {ledger.run}: {sorted(lost)}, seed {seed}"
    for entry in stored:
        assert entry == json.loads(ledger.sent[entry["seq"]]), f"changed, seed {seed}"
    assert [entry["seq"] for entry in stored] == sorted(times), f"out of order, seed {seed}"
    for key, sent in ledger.blobs_sent.items():
        answer = client.get(f"{ledger.run}/blobs/{key}")
        possible = [*sent, ledger.blobs_acknowledged.get(key)]
        assert (answer.body if answer.status == 200 else None) in possible, f"blob, seed {seed}"
