"""Nodes that share a bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.interop.checks import (
    check_kept,
    contract,
    is_refused,
    resumed_cold,
    resumed_warm,
    wait_served,
)
from tests.interop.runtime import DEADLINE, TOKEN
from tests.interop.scene import Scene
from tests.interop.stored import everything
from tests.support.client import Client
from tests.support.processes import free_port, wait_for

STEPS = 40


def node_lost_under_a_run(scene: Scene) -> str:
    """A node is lost under two runs; another takes them over, and they go on there."""
    prefix = scene.prefix()
    ports = free_port(), free_port()
    first, second = (
        scene.member(
            name,
            prefix,
            "--ack",
            "bucket",
            "--advertise",
            f"http://127.0.0.1:{port}",
            port=port,
        )
        for name, port in zip(("first", "second"), ports, strict=True)
    )
    first.serving()
    second.serving()
    order = scene.machine("order.ts", first.url).run(items=8)
    order.ended()
    followed = scene.machine("order.ts", second.url).resume(order.run_id())
    client = Client(first.url, TOKEN)
    # A lease is asked of the owner alone, so whoever comes to another node stands down.
    assert is_refused(followed, client.get("/status").json()["node"])
    client.close()
    relay = scene.relay(first.url)
    world, other_world = scene.world(), scene.world()
    machine = scene.machine("effects.ts", relay.url)
    kept = machine.run(world=world.url, steps=STEPS)
    lost = scene.machine("effects.ts", relay.url).run(world=other_world.url, steps=STEPS)
    runs = [scene.stored(first, command.run_id()) for command in (kept, lost)]
    wait_for(
        lambda: min(len(stored.records()) for stored in runs) >= STEPS // 2,
        f"{STEPS // 2} records of each run",
        DEADLINE,
    )
    client = Client(second.url, TOKEN)
    answer = client.get(f"/runs/{kept.run_id()}/records")
    assert (answer.status, answer.json()["owner_url"]) == (409, first.url)
    client.close()
    first.kill()
    for command in (kept, lost):
        assert command.wait() != 0, "it ended well without its store"
        assert not command.output, "it told a result that its store does not have"

    taken = [scene.stored(second, command.run_id()) for command in (kept, lost)]
    for stored in taken:
        wait_served(stored)
        check_kept(relay.exchanges(), stored)
    relay.target = second.url
    resumed_warm(machine, kept.run_id(), taken[0], world.counts, STEPS)
    journal = machine.file(kept.run_id(), "records.jsonl").read_text()
    assert taken[0].records() == [json.loads(line) for line in journal.splitlines()]
    cold = resumed_cold(scene, lost.run_id(), taken[1], second.url, other_world.counts, steps=STEPS)

    # The node that was lost comes back with its old disk, after the other has stopped in order.
    complete = everything(second.url)
    assert second.stop() == 0
    back = scene.member("first", prefix, "--ack", "bucket").serving()
    assert everything(back.url) == complete
    return f"{len(relay.exchanges())} requests, all answered ones kept; cold: {cold}"


def contract_suite_with_a_bucket(scene: Scene) -> str:
    """The protocol's contract passes on nodes with a bucket, however they acknowledge."""

    acks = ("disk", "bucket")
    nodes = [scene.member(ack, scene.prefix(), "--ack", ack).serving() for ack in acks]
    # What the suite says of the bucket is of nodes without one.
    leave_out = ("--deselect", "tests/contract/test_protocol.py::test_status")
    with ThreadPoolExecutor() as threads:
        summaries = threads.map(
            lambda node, ack: contract(scene, node.url, ack, *leave_out), nodes, acks
        )
    for node in nodes:
        client = Client(node.url, TOKEN)
        status = client.get("/status").json()
        client.close()
        assert status["bucket"] is True
        assert {"cell", "epoch", "lease_expires_at", "replicated"} <= set(status["cells"][0])
        assert node.stop() == 0
    return "; ".join(f"{ack}: {summary}" for ack, summary in zip(acks, summaries, strict=True))


SCENARIOS: list[Callable[[Scene], str]] = [
    node_lost_under_a_run,
    contract_suite_with_a_bucket,
]
