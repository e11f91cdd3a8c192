"""Runs on one node without a bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tests.interop.checks import (
    STEPS,
    Answering,
    check_kept,
    check_paused,
    contract,
    is_refused,
    paused,
    resumed_cold,
    resumed_warm,
)
from tests.interop.relay import Exchange
from tests.interop.runtime import DEADLINE, TOKEN
from tests.interop.scene import Scene
from tests.interop.stored import calls, etag
from tests.support.processes import wait_for
from tests.support.reference import reference


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
    resumed = resumed_cold(scene, command.run_id(), stored, node.url, world.counts)

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
    resumed = resumed_cold(scene, command.run_id(), stored, node.url, world.counts)
    assert world.counts()[held] == 2
    return resumed


def lease_taken_and_released(scene: Scene) -> str:
    """An agent server holds a run's lease while it goes on with it, and nobody else gets it."""
    node = scene.node()
    relay = scene.relay(node.url)
    world = scene.world()
    server = scene.machine("ask.ts", relay.url).serve()[1]
    session = paused(server, world.url)
    stored = scene.stored(node, session["run_id"])
    assert stored.blob("lease.json") is None

    world.hold(1)
    answering = Answering(server, session["id"])
    wait_for(lambda: bool(world.counts()), "the answered run's effect", DEADLINE)
    held = stored.blob("lease.json")
    assert held is not None
    lease = json.loads(held)
    assert lease["owner"].startswith("chidori-serve-")
    assert _time(lease["expires_at"]) > datetime.now(UTC)
    # Nobody else gets it: neither another process, nor any other write.
    recorded = stored.records()
    refused = scene.machine("ask.ts", node.url).resume(session["run_id"], answer="yes\n")
    assert is_refused(refused, lease["owner"])
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
    session = paused(server, world.url)
    stored = scene.stored(node, session["run_id"])
    world.hold(1)
    answering = Answering(server, session["id"])
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
        assert is_refused(heir, lease["owner"])
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
        session = paused(server, world.url)
        stored = scene.stored(node, session["run_id"])
        check_paused(stored)
        answered = Answering(server, session["id"]).ended()
        assert (answered["status"], answered["output"]) == ("completed", {"shipped": True})
        assert calls(stored.records()) == ends
        assert stored.records()[1]["result"] == "yes"
        assert stored.blob("pending.json") is None
        local = machine.file(session["run_id"], "records.jsonl").read_text()
        assert stored.records() == [json.loads(line) for line in local.splitlines()]

    # The machine is lost while it waits; the question is asked again, and answered, elsewhere.
    lost, server = scene.machine("ask.ts", node.url).serve()
    session = paused(server, world.url)
    stored = scene.stored(node, session["run_id"])
    before = check_paused(stored)
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
    check_kept(relay.exchanges(), stored)
    check_kept(relay.exchanges(), other)

    resumed_warm(machine, kept.run_id(), stored, world.counts)
    cold = resumed_cold(scene, lost.run_id(), other, node.url, other_world.counts)
    return f"{len(relay.exchanges())} requests, all answered ones kept; cold: {cold}"


def contract_suite_on_both(scene: Scene) -> str:
    """The protocol's contract passes on ours, and on the reference but for what is written down."""
    node = scene.node()
    ours = contract(scene, node.url, "cellstore")
    with reference(scene.place / "reference", token=TOKEN) as other:
        theirs = contract(scene, other.url, "reference")
    return f"ours: {ours}; the reference: {theirs}"


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
