"""The scenarios. Each raises when it fails, and tells what it has seen when it passes."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

from tests.interop.relay import Exchange
from tests.interop.runtime import DEADLINE, TOKEN, Command
from tests.interop.scene import Scene
from tests.interop.stored import Record, Stored, calls, etag
from tests.support.client import Client
from tests.support.processes import clean_environment, wait_for
from tests.support.reference import reference

STEPS = 150


def runs_to_its_end(scene: Scene) -> str:
    """A run on an empty machine: the journal at the node is the expected one, and the local one."""
    node = scene.node()
    machine = scene.machine("order.ts", node.url)
    command = machine.run(items=8)
    parcels = [f"p-{item}" for item in range(1, 9)]
    assert json.loads(command.ended()) == {"parcels": parcels}

    run = command.run_id()
    stored = scene.stored(node, run)
    assert stored.listed()
    records = stored.records()
    assert [(record["seq"], record["function"], record["args"]) for record in records] == [
        (seq, function, arguments)
        for item in range(1, 9)
        for seq, function, arguments in (
            (
                2 * item - 1,
                "log",
                {
                    "message": "packed",
                    "fields": {"item": item, "label": "naïve “quote” 😀 \u2028 \0 end"},
                },
            ),
            (
                2 * item,
                "memory",
                {
                    "action": "set",
                    "key": "parcels",
                    "namespace": "default",
                    "prefix": "",
                    "value": {
                        "parcels": parcels[:item],
                        "weight": 0.1 * item,
                        "far": item * 2**48,
                    },
                },
            ),
        )
    ]
    files = machine.files(run)
    assert records == [json.loads(line) for line in files["records.jsonl"].splitlines()]
    keys = stored.blob_keys()
    assert {"input.json", "output.json", "runtime.snapshot.json"} <= set(keys)
    # At its end the runtime replaces these by one blob: it passes over errors of that in silence.
    assert "host_promises.json" in keys
    assert not [key for key in keys if key.startswith("host_promises/")]
    for key in keys:
        assert stored.blob(key) == files[key], key
    return f"{len(records)} records and {len(keys)} blobs at the node, all as on the machine"


def killed_and_resumed_cold(scene: Scene) -> str:
    """A run loses its machine midway, and an empty one resumes it."""
    node = scene.node()
    world = scene.world()
    relay = scene.relay(node.url)
    command = scene.machine("effects.ts", relay.url).run(world=world.url, steps=STEPS)
    stored = scene.stored(node, command.run_id())
    wait_for(lambda: len(stored.records()) >= STEPS, f"{STEPS} records", DEADLINE)
    command.kill()
    # What it had sent before may still be on its way.
    wait_for(lambda: relay.quiet() and world.quiet(), "the end of its connections")
    resumed = _resumed_cold(scene, command.run_id(), stored, node.url, world.counts)

    # What is complete is only replayed.
    complete, effects = stored.records(), world.counts()
    again = scene.machine("effects.ts", node.url).resume(command.run_id())
    assert json.loads(again.ended()) == {"answers": STEPS}
    assert again.replayed() == (2 * STEPS, 0), again.replayed()
    assert (stored.records(), world.counts()) == (complete, effects)
    return resumed


def killed_in_an_effect(scene: Scene) -> str:
    """As before, killed when an effect has happened and its answer has not come."""
    node = scene.node()
    world = scene.world()
    held = STEPS // 10
    world.hold(held)
    command = scene.machine("effects.ts", node.url).run(world=world.url, steps=STEPS)
    stored = scene.stored(node, command.run_id())
    wait_for(lambda: held in world.counts(), f"effect {held}", DEADLINE)
    command.kill()
    world.release()
    wait_for(world.quiet, "the end of its connections")
    assert len(stored.records()) == 2 * (held - 1)
    assert stored.blob("pending.json") is not None, "the node does not know of the call in flight"
    resumed = _resumed_cold(scene, command.run_id(), stored, node.url, world.counts)
    assert world.counts()[held] == 2
    return resumed


def _resumed_cold(
    scene: Scene, run: str, stored: Stored, store: str, counts: Callable[[], dict[int, int]]
) -> str:
    """Resume a run of `effects.ts` on an empty machine, and check what that has done."""
    before, effects = stored.records(), counts()
    assert 0 < len(before) < 2 * STEPS
    assert calls(before) == _steps(len(before))
    resumed = scene.machine("effects.ts", store).resume(run)
    assert json.loads(resumed.ended()) == {"answers": STEPS}
    assert resumed.replayed() == (len(before), 2 * STEPS - len(before)), resumed.replayed()
    _check_once(stored, before, effects, counts())
    doubled = [step for step, times in counts().items() if times == 2]
    return (
        f"{len(before)} calls replayed, {2 * STEPS - len(before)} executed; "
        f"{STEPS} effects, done twice: {doubled or 'none'}"
    )


def _check_once(
    stored: Stored, recorded: list[Record], before: dict[int, int], after: dict[int, int]
) -> None:
    """Check that a resume of `effects.ts` did what `recorded` had not, once, and nothing else.

    The runtime's promise: a call whose record is in the journal is never executed again. It writes
    down that a call begins before it executes it, and its result after, and `resume` goes by the
    results. So one call can have been executed and not recorded, the one in flight: it is executed
    again. No store can change that, and a store that lost a record would show as a second one.
    """
    records = stored.records()
    assert records[: len(recorded)] == recorded
    assert calls(records) == _steps(2 * STEPS)
    # The odd calls are the effects.
    done = dict.fromkeys(range(1, (len(recorded) + 1) // 2 + 1), 1)
    in_flight = {} if len(recorded) % 2 else {len(done) + 1: 1}
    assert before in (done, done | in_flight), "before the resume"
    assert after == {
        step: before.get(step, 0) + (step not in done) for step in range(1, STEPS + 1)
    }, "after the resume"


def _steps(number: int) -> list[tuple[int, str]]:
    """The first calls of `effects.ts`."""
    return [(seq, "http" if seq % 2 else "log") for seq in range(1, number + 1)]


def lease_taken_and_released(scene: Scene) -> str:
    """An agent server holds a run's lease while it goes on with it, and nobody else gets it."""
    node = scene.node()
    relay = scene.relay(node.url)
    world = scene.world()
    server = scene.machine("ask.ts", relay.url).serve()[1]
    session = _paused(server, world.url)
    stored = scene.stored(node, session["run_id"])
    assert stored.blob("lease.json") is None

    world.hold(1)
    answering = _Answering(server, session["id"])
    wait_for(lambda: bool(world.counts()), "the answered run's effect", DEADLINE)
    held = stored.blob("lease.json")
    assert held is not None
    lease = json.loads(held)
    assert lease["owner"].startswith("chidori-serve-")
    assert _time(lease["expires_at"]) > datetime.now(UTC)
    # Nobody else gets it: neither another process, nor any other write.
    recorded = stored.records()
    refused = scene.machine("ask.ts", node.url).resume(session["run_id"], answer="yes\n")
    assert _is_refused(refused, lease["owner"])
    assert stored.put("lease.json", b"{}", if_none_match="*") == 412
    assert stored.put("lease.json", b"{}", if_match=etag(b"{}")) == 412
    assert stored.blob("lease.json") == held
    assert stored.records() == recorded

    world.release()
    assert answering.ended()["status"] == "completed"
    assert stored.blob("lease.json") is None
    assert world.counts() == {1: 1}
    passed = [
        exchange for exchange in relay.exchanges("/blobs/lease.json") if exchange.method != "GET"
    ]
    assert [_conditional(exchange) for exchange in passed] == [
        ("PUT", "*", None, 200),
        ("DELETE", None, etag(held), 200),
    ]
    assert passed[0].body == held

    # Now it is free.
    free = scene.machine("ask.ts", node.url).resume(session["run_id"])
    assert json.loads(free.ended()) == {"shipped": True}
    assert free.replayed() == (4, 0), free.replayed()
    assert stored.blob("lease.json") is None
    return f"held by {lease['owner'][:13]}…, a second holder refused, released, taken again"


def lease_of_the_dead_taken_over(scene: Scene) -> str:
    """The lease of a holder that was killed is refused until it expires, and then swapped."""
    node = scene.node()
    world = scene.world()
    seconds = 3
    settings = {"CHIDORI_RUN_LEASE_TTL_SECS": str(seconds)}
    holder, server = scene.machine("ask.ts", node.url, settings).serve()
    session = _paused(server, world.url)
    stored = scene.stored(node, session["run_id"])
    world.hold(1)
    answering = _Answering(server, session["id"])
    wait_for(lambda: bool(world.counts()), "the answered run's effect", DEADLINE)
    left = stored.blob("lease.json")
    assert left is not None
    lease = json.loads(left)
    holder.kill()
    answering.join()
    world.release()

    relay = scene.relay(node.url)
    refusals = 0
    while True:
        began = datetime.now(UTC)
        heir = scene.machine("ask.ts", relay.url).resume(session["run_id"])
        if heir.wait() == 0:
            break
        assert _is_refused(heir, lease["owner"])
        assert began <= _time(lease["expires_at"]), "refused after the lease had expired"
        refusals += 1
    assert datetime.now(UTC) > _time(lease["expires_at"]), "taken before the lease had expired"
    assert json.loads(heir.output) == {"shipped": True}
    taken, released = [
        exchange for exchange in relay.exchanges("/blobs/lease.json") if exchange.method != "GET"
    ]
    assert _conditional(taken) == ("PUT", None, etag(left), 200)
    assert _conditional(released) == ("DELETE", None, etag(taken.body), 200)
    assert stored.blob("lease.json") is None
    assert calls(stored.records()) == [(1, "log"), (2, "input"), (3, "http"), (4, "log")]
    # Its answer was lost with the holder.
    assert world.counts() == {1: 2}
    return f"refused {refusals} times within {seconds} s, then swapped and released"


def question_paused_and_answered(scene: Scene) -> str:
    """An agent asks a person, and is answered in place, by replay, or on another machine."""
    node = scene.node()
    world = scene.world()
    ends = [(1, "log"), (2, "input"), (3, "http"), (4, "log")]

    for warm in ("1", "0"):
        machine = scene.machine("ask.ts", node.url, {"CHIDORI_WARM_RESUME": warm})
        server = machine.serve()[1]
        session = _paused(server, world.url)
        stored = scene.stored(node, session["run_id"])
        _check_paused(stored)
        answered = _Answering(server, session["id"]).ended()
        assert (answered["status"], answered["output"]) == ("completed", {"shipped": True})
        assert calls(stored.records()) == ends
        assert stored.records()[1]["result"] == "yes"
        assert stored.blob("pending.json") is None
        local = machine.file(session["run_id"], "records.jsonl").read_text()
        assert stored.records() == [json.loads(line) for line in local.splitlines()]

    # The machine is lost while it waits; the question is asked again, and answered, elsewhere.
    lost, server = scene.machine("ask.ts", node.url).serve()
    session = _paused(server, world.url)
    stored = scene.stored(node, session["run_id"])
    before = _check_paused(stored)
    lost.kill()
    elsewhere = scene.machine("ask.ts", node.url).resume(session["run_id"], answer="no\n")
    assert json.loads(elsewhere.ended()) == {"shipped": False}
    assert elsewhere.replayed() == (1, 2), elsewhere.replayed()
    records = stored.records()
    assert calls(records) == [(1, "log"), (2, "input"), (3, "log")]
    assert (records[:1], records[1]["result"]) == (before, "no")
    assert world.counts() == {1: 2}
    return "answered in place, by replay, and on another machine"


def node_killed_under_a_run(scene: Scene) -> str:
    """The node dies under two runs: they stop, and go on once it is back, one of them cold."""
    node = scene.node()
    relay = scene.relay(node.url)
    world, other_world = scene.world(), scene.world()
    machine = scene.machine("effects.ts", relay.url)
    kept = machine.run(world=world.url, steps=STEPS)
    lost = scene.machine("effects.ts", relay.url).run(world=other_world.url, steps=STEPS)
    stored = scene.stored(node, kept.run_id())
    other = scene.stored(node, lost.run_id())
    wait_for(
        lambda: min(len(stored.records()), len(other.records())) >= STEPS // 2,
        f"{STEPS // 2} records of each run",
        DEADLINE,
    )
    node.kill()
    for command in (kept, lost):
        assert command.wait() != 0, "it ended well without its store"
        assert not command.output, "it told a result that its store does not have"

    node = scene.node(node.port)
    _check_kept(relay.exchanges(), stored)
    _check_kept(relay.exchanges(), other)

    # On the same machine the local journal counts, which may be one record ahead.
    local = machine.file(kept.run_id(), "records.jsonl").read_text()
    recorded: list[Record] = [json.loads(line) for line in local.splitlines()]
    at_node = stored.records()
    assert recorded[: len(at_node)] == at_node
    assert len(recorded) - len(at_node) in {0, 1}
    effects = world.counts()
    resumed = machine.resume(kept.run_id())
    assert json.loads(resumed.ended()) == {"answers": STEPS}
    assert resumed.replayed() == (len(recorded), 2 * STEPS - len(recorded)), resumed.replayed()
    _check_once(stored, recorded, effects, world.counts())

    cold = _resumed_cold(scene, lost.run_id(), other, node.url, other_world.counts)
    return f"{len(relay.exchanges())} requests, all answered ones kept; cold: {cold}"


def _check_kept(exchanges: list[Exchange], stored: Stored) -> None:
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


def contract_suite_on_both(scene: Scene) -> str:
    """The protocol's contract passes on ours, and on the reference but for what is written down."""
    node = scene.node()
    ours = _contract(scene, node.url, "cellstore")
    with reference(scene.place / "reference", token=TOKEN) as other:
        theirs = _contract(scene, other.url, "reference")
    return f"ours: {ours}; the reference: {theirs}"


def _contract(scene: Scene, url: str, target: str) -> str:
    """The summary of the contract suite, run on a server."""
    settings = {
        "CELLSTORE_CONTRACT_URL": url,
        "CELLSTORE_CONTRACT_TOKEN": TOKEN,
        "CELLSTORE_CONTRACT_TARGET": target,
    }
    suite = "tests/contract/test_protocol.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", suite],
        env=clean_environment() | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (scene.place / f"contract-{target}.log").write_text(done.stdout)
    assert done.returncode == 0, f"the contract suite failed on {target}"
    return done.stdout.strip().splitlines()[-1].strip("= ")


def _paused(server: str, world: str) -> dict[str, Any]:
    """A session of `ask.ts` that has come to its question."""
    session = _post(server, "/sessions", {"input": {"world": world}})
    assert (session["status"], session["pending_prompt"]) == ("paused", "Ship it?")
    return session


def _check_paused(stored: Stored) -> list[Record]:
    """Check what a node holds of a run of `ask.ts` that waits; returns its records."""
    pending = stored.blob("pending.json")
    assert pending is not None
    asked = json.loads(pending)
    assert (asked["seq"], asked["kind"], asked["args"]) == (2, "input", {"prompt": "Ship it?"})
    assert stored.blob("output.json") is None
    records = stored.records()
    assert calls(records) == [(1, "log")]
    return records


class _Answering:
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


def _is_refused(command: Command, owner: str) -> bool:
    """Whether it did not get a run's lease, and says who has it."""
    return (
        command.wait() != 0
        and "already being driven by another process" in command.errors
        and owner in command.errors
    )


def _conditional(exchange: Exchange) -> tuple[str, str | None, str | None, int | None]:
    """A conditional write, in short."""
    headers = exchange.headers
    return (
        exchange.method,
        headers.get("if-none-match"),
        headers.get("if-match"),
        exchange.status,
    )


def _time(text: str) -> datetime:
    """A time as the runtime writes it: with more digits than Python reads."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC) + timedelta(
        microseconds=int(rest[:6].ljust(6, "0"))
    )


SCENARIOS: list[Callable[[Scene], str]] = [
    runs_to_its_end,
    killed_and_resumed_cold,
    killed_in_an_effect,
    lease_taken_and_released,
    lease_of_the_dead_taken_over,
    question_paused_and_answered,
    node_killed_under_a_run,
    contract_suite_on_both,
]
