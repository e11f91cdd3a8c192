"""What scenarios check alike: runs of the agents in `agents/`, and what a node holds of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Callable
from threading import Thread
from typing import Any

from tests.interop.relay import Exchange
from tests.interop.runtime import DEADLINE, TOKEN, Command, Machine
from tests.interop.scene import Scene
from tests.interop.stored import Record, Stored, calls
from tests.support.client import Client
from tests.support.processes import clean_environment, wait_for

STEPS = 150


def resumed_cold(
    scene: Scene,
    run: str,
    stored: Stored,
    store: str,
    counts: Callable[[], dict[int, int]],
    steps: int = STEPS,
) -> str:
    """Resume a run of `effects.ts` on an empty machine, and check what that has done."""
    before, effects = stored.records(), counts()
    assert 0 < len(before) < 2 * steps
    assert calls(before) == steps_of(len(before))
    resumed = scene.machine("effects.ts", store).resume(run)
    assert json.loads(resumed.ended()) == {"answers": steps}
    assert resumed.replayed() == (len(before), 2 * steps - len(before)), resumed.replayed()
    check_once(stored, before, effects, counts(), steps)
    doubled = [step for step, times in counts().items() if times == 2]
    return (
        f"{len(before)} calls replayed, {2 * steps - len(before)} executed; "
        f"{steps} effects, done twice: {doubled or 'none'}"
    )


def check_once(
    stored: Stored,
    recorded: list[Record],
    before: dict[int, int],
    after: dict[int, int],
    steps: int = STEPS,
) -> None:
    """Check that a resume of `effects.ts` did what `recorded` had not, once, and nothing else.

    The runtime's promise: a call whose record is in the journal is never executed again. It writes
    down that a call begins before it executes it, and its result after, and `resume` goes by the
    results. So one call can have been executed and not recorded, the one in flight: it is executed
    again. No store can change that, and a store that lost a record would show as a second one.
    """
    records = stored.records()
    assert records[: len(recorded)] == recorded
    assert calls(records) == steps_of(2 * steps)
    # The odd calls are the effects.
    done = dict.fromkeys(range(1, (len(recorded) + 1) // 2 + 1), 1)
    in_flight = {} if len(recorded) % 2 else {len(done) + 1: 1}
    assert before in (done, done | in_flight), "before the resume"
    assert after == {
        step: before.get(step, 0) + (step not in done) for step in range(1, steps + 1)
    }, "after the resume"


def resumed_warm(
    machine: Machine,
    run: str,
    stored: Stored,
    counts: Callable[[], dict[int, int]],
    steps: int = STEPS,
) -> None:
    """Resume a run of `effects.ts` on its own machine, whose journal may be one record ahead."""
    local = machine.file(run, "records.jsonl").read_text()
    recorded: list[Record] = [json.loads(line) for line in local.splitlines()]
    at_node, effects = stored.records(), counts()
    assert recorded[: len(at_node)] == at_node
    assert len(recorded) - len(at_node) in {0, 1}
    resumed = machine.resume(run)
    assert json.loads(resumed.ended()) == {"answers": steps}
    assert resumed.replayed() == (len(recorded), 2 * steps - len(recorded)), resumed.replayed()
    check_once(stored, recorded, effects, counts(), steps)


def steps_of(number: int) -> list[tuple[int, str]]:
    """The first calls of `effects.ts`."""
    return [(seq, "http" if seq % 2 else "log") for seq in range(1, number + 1)]


def check_kept(exchanges: list[Exchange], stored: Stored) -> None:
    """Check that a run is at the node as its answered requests left it.

    Of the one request that was not answered before the node's death, either all is there or
    nothing. Those sent after it never reached a node.
    """
    records: dict[int, Record] = {}
    blobs: dict[str, bytes | None] = {}
    unanswered: Exchange | None = None
    prefix = f"/runs/{stored.run}/"
    for exchange in exchanges:
        if exchange.method == "GET" or not exchange.path.startswith(prefix):
            continue
        if exchange.status is None:
            unanswered = unanswered or exchange
            continue
        assert exchange.status == 200
        assert unanswered is None, "answered after the node's death"
        _apply(exchange, prefix, records, blobs)
    assert unanswered is not None
    kept = (stored.records(), {key: stored.blob(key) for key in stored.blob_keys()})
    answered = (list(records.values()), _present(blobs))
    _apply(unanswered, prefix, records, blobs)
    assert kept in (answered, (list(records.values()), _present(blobs)))


def _apply(
    exchange: Exchange, prefix: str, records: dict[int, Record], blobs: dict[str, bytes | None]
) -> None:
    what = exchange.path.removeprefix(prefix)
    if what == "records":
        assert exchange.method == "POST", "these runs do not come to their ends"
        record: Record = json.loads(exchange.body)
        records[record["seq"]] = record
    else:
        key = what.removeprefix("blobs/")
        blobs[key] = exchange.body if exchange.method == "PUT" else None


def _present(blobs: dict[str, bytes | None]) -> dict[str, bytes]:
    return {key: body for key, body in blobs.items() if body is not None}


def contract(scene: Scene, url: str, target: str, *options: str) -> str:
    """The summary of the contract suite, run on a server."""
    settings = {
        "CELLSTORE_CONTRACT_URL": url,
        "CELLSTORE_CONTRACT_TOKEN": TOKEN,
        "CELLSTORE_CONTRACT_TARGET": target,
    }
    suite = "tests/contract/test_protocol.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, suite],
        env=clean_environment() | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (scene.place / f"contract-{target}.log").write_text(done.stdout)
    assert done.returncode == 0, f"the contract suite failed on {target}"
    return done.stdout.strip().splitlines()[-1].strip("= ")


def is_refused(command: Command, owner: str) -> bool:
    """Whether it did not get a run's lease, and says who has it."""
    return (
        command.wait() != 0
        and "already being driven by another process" in command.errors
        and owner in command.errors
    )


def wait_served(stored: Stored) -> None:
    """Wait until a node has taken a run over."""
    wait_for(lambda: stored.answers() == 200, f"a takeover of {stored.run}", DEADLINE)


def paused(server: str, world: str) -> dict[str, Any]:
    """A session of `ask.ts` that has come to its question."""
    session = _post(server, "/sessions", {"input": {"world": world}})
    assert (session["status"], session["pending_prompt"]) == ("paused", "Ship it?")
    return session


def check_paused(stored: Stored) -> list[Record]:
    """Check what a node holds of a run of `ask.ts` that waits; returns its records."""
    pending = stored.blob("pending.json")
    assert pending is not None
    asked = json.loads(pending)
    assert (asked["seq"], asked["kind"], asked["args"]) == (2, "input", {"prompt": "Ship it?"})
    assert stored.blob("output.json") is None
    records = stored.records()
    assert calls(records) == [(1, "log")]
    return records


class Answering:
    """Answers a session's question; the answer to that comes when the run has ended."""

    def __init__(self, server: str, session: str) -> None:
        self._result: dict[str, Any] | None = None
        self._thread = Thread(target=self._answer, args=(server, session), daemon=True)
        self._thread.start()

    def _answer(self, server: str, session: str) -> None:
        # Without a result when the agent server dies meanwhile.
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._result = _post(server, f"/sessions/{session}/resume", {"response": "yes"})

    def join(self) -> None:
        self._thread.join(DEADLINE)

    def ended(self) -> dict[str, Any]:
        """The session, when its run has ended."""
        self.join()
        assert self._result is not None, "the question's answer was not accepted"
        return self._result


def _post(server: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    client = Client(server, timeout=DEADLINE)
    answer = client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    client.close()
    assert answer.status < 300, f"{path}: {answer.status} {answer.text}"
    session: dict[str, Any] = answer.json()
    return session
