"""A bucket's prefix that the reference server wrote, and one of ours that it strays into."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from threading import Event, Thread

from tests.interop.checks import (
    Answering,
    check_paused,
    paused,
    resumed_cold,
    wait_served,
)
from tests.interop.prefix import Prefix
from tests.interop.runtime import DEADLINE, TOKEN
from tests.interop.scene import Scene
from tests.interop.stored import Stored, calls, everything
from tests.interop.world import World
from tests.support.client import Client, record
from tests.support.processes import Process, wait_for

IDENTITY = "cellstore.json"
KILLS = 2
STEPS = 60


def reference_prefix_adopted(scene: Scene) -> str:
    """Runs of the real client move from the reference's prefix to ours, and go on there."""
    prefix = scene.prefix()
    other = scene.reference("theirs", prefix)
    world, asked, asked_again = scene.world(), scene.world(), scene.world()
    complete = scene.machine("order.ts", other.url).run(items=8)
    complete.ended()
    server = scene.machine("ask.ts", other.url).serve()[1]
    waiting = paused(server, asked.url)
    left, left_server = scene.machine("ask.ts", other.url).serve()
    left_waiting = paused(left_server, asked_again.url)
    left.kill()
    half_way = _half_way(scene, other, world)
    client = Client(other.url, TOKEN)
    for name in ("triager", "night@watch-2"):
        entry = json.dumps({"name": name, "run_id": half_way, "weight": 0.1, "note": "“é”"})
        assert client.put(f"/registry/{name}", entry).status == 200
    _wait_replicated(other)
    before = everything(other.url)
    assert (len(before[0]), len(before[1])) == (4, 2)

    said = scene.refused("ours", prefix)
    assert "another kind of server wrote it" in said
    assert "--adopt" in said
    said = scene.refused("ours", prefix, "--adopt")
    assert f"is leased by node `{client.get('/status').json()['node']}`" in said
    assert not prefix.there(IDENTITY)
    assert everything(other.url) == before

    client.close()
    other.kill()
    node, refusals = _adopted(scene, prefix, port=other.port)
    assert everything(node.url) == before

    # To this agent server the store was away for a while, and is what it was.
    ended = Answering(server, waiting["id"]).ended()
    assert (ended["status"], ended["output"]) == ("completed", {"shipped": True})
    assert asked.counts() == {1: 1}
    # The machine of this one is gone.
    recorded = check_paused(scene.stored(node, left_waiting["run_id"]))
    heir = scene.machine("ask.ts", node.url).resume(left_waiting["run_id"], answer="yes\n")
    assert json.loads(heir.ended()) == {"shipped": True}
    assert asked_again.counts() == {1: 1}
    records = scene.stored(node, left_waiting["run_id"]).records()
    assert (records[:1], calls(records)[1:]) == (recorded, [(2, "input"), (3, "http"), (4, "log")])
    again = scene.machine("order.ts", node.url).resume(complete.run_id())
    again.ended()
    assert again.replayed() == (16, 0), again.replayed()
    stored = scene.stored(node, half_way)
    seen = resumed_cold(scene, half_way, stored, node.url, world.counts, STEPS)
    return f"refused while leased, and {refusals} times after; all equal; resumed: {seen}"


def adoption_broken_off(scene: Scene) -> str:
    """An adoption stops at a pointer that dangles, is killed again and again, and comes to its end.

    Amid of it the reference is started once more: what is adopted stays so.
    """
    prefix = scene.prefix()
    other = scene.reference("theirs", prefix)
    runs = [f"run-{number:02}" for number in range(45)]
    _fill(other, runs)
    _wait_replicated(other)
    before = everything(other.url)
    assert before[0]["empty"] == ([], {})
    assert other.stop(signal.SIGINT) == 0
    total = len(runs) + 1

    dangling = runs[10]
    (key,) = prefix.there(f"cells/{dangling}/meta/*")
    lost = prefix.record(key)["snapshot"]
    (there,) = prefix.there(f"cells/{dangling}/state/*")
    assert lost.endswith(there)
    kept = f"cells/{dangling}/state/kept.db"
    prefix.put(kept, prefix.read(there))
    prefix.delete(there)
    said, _ = _refused_adoption(scene, prefix)
    assert f"cell `{dangling}`: its record names {lost}, which is not in the bucket" in said
    assert f"There are: {kept}" in said
    # Those before it are adopted; of those that were under way with it, some may be.
    adopted_before = _adopted_cells(prefix)
    assert adopted_before
    assert dangling not in adopted_before
    assert "--adopt" in scene.refused("ours", prefix)
    prefix.put(key, json.dumps(prefix.record(key) | {"snapshot": kept}).encode())

    kept_records: dict[str, bytes] = {}
    for _ in range(KILLS):
        _kill_amid_adoption(scene, prefix)
        kept_records |= _adopted_cells(prefix)
    assert len(kept_records) < total, "all were adopted before the last kill"
    assert not prefix.there(IDENTITY)

    # Several are adopted at once, so which of the first ones are is left to chance.
    done = next(run for run in runs if run in kept_records)
    other_run = next(run for run in reversed(runs) if run not in kept_records)
    _ask_reference_again(scene, prefix, done, other_run, before[0][other_run][0])
    node, _ = _adopted(scene, prefix)
    adopted = _adopted_cells(prefix)
    assert len(adopted) == total
    assert kept_records.items() <= adopted.items(), "a cell was adopted twice"
    assert everything(node.url) == before
    return (
        f"the pointer's cell named; {len(kept_records)} of {total} cells adopted when it was "
        f"killed for the last of {KILLS} times; all equal"
    )


def _kill_amid_adoption(scene: Scene, prefix: Prefix) -> None:
    done = len(_adopted_cells(prefix))
    adopting = scene.member("ours", prefix, "--adopt")
    wait_for(lambda: len(_adopted_cells(prefix)) > done, "another cell adopted")
    adopting.kill()


def _ask_reference_again(
    scene: Scene, prefix: Prefix, adopted: str, other: str, records: list[dict[str, object]]
) -> None:
    """Start the reference amid an adoption: it fails for what is adopted, and serves the rest."""
    process = scene.reference("theirs", prefix)
    client = Client(process.url, TOKEN)
    answer = client.get(f"/runs/{adopted}/records")
    assert (answer.status, "see-base-and-pieces` missing" in answer.text) == (500, True)
    assert client.get(f"/runs/{other}/records").json() == records
    client.close()
    process.kill()


def reference_started_by_mistake(scene: Scene) -> str:
    """A reference node on our prefix fails loudly for our runs, and harms none of them."""
    prefix = scene.prefix()
    node = scene.member("ours", prefix).serving()
    world, world_later, world_astray = scene.world(), scene.world(), scene.world()
    run = _half_way(scene, node, world)
    later = _half_way(scene, node, world_later)
    stored = scene.stored(node, run)
    before, effects = everything(node.url), world.counts()

    mistaken = scene.reference("mistaken", prefix)
    client = Client(mistaken.url, TOKEN)

    def astray() -> tuple[int, str]:
        answer = client.get(f"/runs/{run}/records")
        return answer.status, answer.text

    # While our node holds it.
    def held() -> bool:
        assert stored.records() == before[0][run][0]
        return astray()[0] == 409

    wait_for(held, "a refusal")
    assert scene.machine("effects.ts", mistaken.url).resume(run).wait() != 0
    # And when its lease has lapsed for want of use.
    wait_for(lambda: astray()[0] == 500, "the mistaken node's claim")
    assert f"`cells/{run}/state/see-base-and-pieces` missing" in astray()[1]
    assert scene.machine("effects.ts", mistaken.url).resume(run).wait() != 0
    assert client.post(f"/runs/{run}/records", record(1)).status in {409, 500}
    assert world.counts() == effects
    # A run that is new is served there, since nothing tells that node that it has strayed.
    new = scene.machine("effects.ts", mistaken.url).run(world=world_astray.url, steps=STEPS)
    assert json.loads(new.ended()) == {"answers": STEPS}
    strayed = Stored(mistaken.url, new.run_id())
    strayed_content = strayed.records(), strayed.blobs()
    strayed.close()

    assert everything(node.url, without=new.run_id()) == before
    with _asking(mistaken, run):
        seen = resumed_cold(scene, run, stored, node.url, world.counts, STEPS)
    _wait_replicated(node)
    before = everything(node.url, without=new.run_id())
    node.kill()
    client = Client(mistaken.url, TOKEN)
    wait_for(lambda: client.get(f"/runs/{later}/blobs").status == 500, "the mistaken node's claim")

    heir = scene.member("heir", prefix).serving()
    at_heir = scene.stored(heir, later)
    for name in (run, later):
        wait_served(scene.stored(heir, name))
    assert everything(heir.url, without=new.run_id()) == before
    seen_later = resumed_cold(scene, later, at_heir, heir.url, world_later.counts, STEPS)
    _wait_replicated(mistaken)
    client.close()
    mistaken.kill()
    # Its own run is never taken for an empty one, and can be adopted.
    assert scene.stored(heir, new.run_id()).answers() >= 500
    assert heir.stop() == 0
    heir, _ = _adopted(scene, prefix, "heir")
    adopted = scene.stored(heir, new.run_id())
    assert (adopted.records(), adopted.blobs()) == strayed_content
    assert everything(heir.url, without=new.run_id())[0].keys() == {run, later}
    assert len(scene.stored(heir, later).records()) == 2 * STEPS
    return f"409, then 500; ours went on: {seen}; taken over: {seen_later}"


def _half_way(scene: Scene, node: Process, world: World) -> str:
    """A run of `effects.ts` that has lost its machine midway."""
    relay = scene.relay(node.url)
    command = scene.machine("effects.ts", relay.url).run(world=world.url, steps=STEPS)
    stored = scene.stored(node, command.run_id())
    wait_for(lambda: len(stored.records()) >= STEPS, f"{STEPS} records", DEADLINE)
    command.kill()
    wait_for(lambda: relay.quiet() and world.quiet(), "the end of its connections")
    return command.run_id()


def _fill(node: Process, runs: list[str]) -> None:
    """Write small and large runs, and one that is known and empty."""
    client = Client(node.url, TOKEN)
    for number, run in enumerate(runs):
        for seq in (3, 1, 2):
            text = record(seq, result=f"{run} “{seq}”", weight=0.1 * seq)
            assert client.post(f"/runs/{run}/records", text).status == 200
        blob = os.urandom(100 if number % 3 else 150_000)
        for key in ("plain.json", "na%C3%AFve%2F%00", "empty"):
            body = b"" if key == "empty" else blob
            assert client.put(f"/runs/{run}/blobs/{key}", body).status == 200
    # A write that the reference refuses makes the run all the same.
    assert client.post("/runs/empty/records", '{"seq":-1}').status == 500
    client.close()


def _wait_replicated(node: Process) -> None:
    """Wait until all that a node has is in the bucket."""
    client = Client(node.url, TOKEN)

    def replicated() -> bool:
        return all(cell["replicated"] for cell in client.get("/status").json()["cells"])

    wait_for(replicated, "replication", DEADLINE)
    client.close()


def _adopted_cells(prefix: Prefix) -> dict[str, bytes]:
    """The cells that have a record of ours, with the first one."""
    found: dict[str, bytes] = {}
    for key in prefix.there("cells/*/meta/*.json"):
        data = prefix.read(key)
        if b'"nonce"' in data:
            found.setdefault(key.split("/")[1], data)
    return found


def _refused_adoption(scene: Scene, prefix: Prefix) -> tuple[str, int]:
    """What a node says that cannot adopt, and how often it was put off by a lease before."""
    refusals = 0
    while _is_put_off(said := scene.refused("ours", prefix, "--adopt")):
        refusals += 1
    return said, refusals


def _adopted(
    scene: Scene, prefix: Prefix, name: str = "ours", port: int | None = None
) -> tuple[Process, int]:
    """A node that has adopted the prefix, and how often it was put off by a lease before."""
    refusals = 0
    while True:
        node = scene.member(name, prefix, "--adopt", port=port)
        with contextlib.suppress(RuntimeError):
            return node.serving(), refusals
        assert _is_put_off(node.log())
        refusals += 1


def _is_put_off(said: str) -> bool:
    return "is leased by node" in said.splitlines()[-1]


@contextlib.contextmanager
def _asking(node: Process, run: str) -> Iterator[None]:
    """Ask a node for a run again and again; it must never get it."""
    client = Client(node.url, TOKEN)
    ended = Event()
    statuses: set[int] = set()

    def ask() -> None:
        while not ended.is_set():
            statuses.add(client.get(f"/runs/{run}/records").status)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        client.close()
    assert statuses <= {409, 500}, statuses


SCENARIOS: list[Callable[[Scene], str]] = [
    reference_prefix_adopted,
    adoption_broken_off,
    reference_started_by_mistake,
]
