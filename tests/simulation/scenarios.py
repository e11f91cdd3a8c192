"""Faults that systems like this one have had, one after the other, each made to happen.

`test_scenarios.py` has the list of faults, and says of those that are not here where they belong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cellstore.conditions import Condition, Match, digest
from cellstore.objects import StoreFault
from cellstore.operations import PutBlob, Touch
from tests.simulation.process import Knobs
from tests.simulation.stage import CELL, KNOBS, Script, Stage


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens in it, by a few words, and how the nodes are set."""

    name: str
    script: Script
    knobs: Knobs


SCENARIOS: dict[str, Scenario] = {}


def scenario(**changes: Any) -> Callable[[Script], Script]:
    def note(script: Script) -> Script:
        name = script.__name__.replace("_", "-")
        SCENARIOS[name] = Scenario(name, script, KNOBS._replace(**changes))
        return script

    return note


@scenario()
async def a_write_survives_a_crash_and_is_published_without_a_request(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    await stage.done(stage.one, stage.record())
    stage.kill(stage.one)
    await stage.start(stage.one)
    await stage.until(lambda: stage.published, 10)


@scenario(idle_secs=2.0)
async def the_first_write_after_a_hibernation_survives_too(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await asyncio.sleep(6)
    stage.expect(not stage.process(stage.one).node.open_cells(), "it is not closed")
    await stage.done(stage.one, stage.record())
    stage.kill(stage.one)
    await stage.start(stage.one)
    await stage.until(lambda: stage.published, 10)


@scenario(small=True)
async def an_owner_that_lost_the_cell_deletes_nothing_of_its_successor(stage: Stage) -> None:
    for _ in range(6):
        await stage.done(stage.one, stage.record(600))
        await asyncio.sleep(0.6)
    stage.one.faults.partitioned = True
    for _ in range(10):
        reply = await stage.ask(stage.two, stage.record(600))
        if reply.kind == "done":
            break
    stage.world.calm(stage.one)
    await asyncio.sleep(20)
    await stage.read(stage.two)


@scenario()
async def a_crash_after_the_claim_and_before_its_answer(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    await stage.done(stage.one, stage.record())
    stage.kill(stage.one)
    stage.at_epoch(stage.top + 1, lambda: stage.kill(stage.one))
    stage.world.start(stage.one)
    await stage.until(lambda: stage.process(stage.one).life.dead)
    await stage.start(stage.one)
    await stage.until(lambda: stage.published, 10)
    stage.expect(not stage.orphans(stage.one), "its own writes became an orphan")


@scenario()
async def a_renewal_after_a_takeover_fences(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    stage.world.pause(stage.process(stage.one).life, 7)
    await asyncio.sleep(6)
    await stage.done(stage.two, stage.record())
    await asyncio.sleep(1.5)
    reply = await stage.ask(stage.one, stage.record())
    stage.expect(reply.kind == "elsewhere", f"{reply.kind}, though another owns it")


@scenario(slow_commit=0.5)
async def a_pause_between_commit_and_answer(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    asked = stage.asking(stage.one, stage.record())
    await asyncio.sleep(0.001)
    stage.world.pause(stage.process(stage.one).life, 15)
    await asyncio.sleep(7)
    await stage.done(stage.two, stage.record())
    reply = await asked
    stage.expect(reply.kind != "done", "a write was acknowledged after the takeover")


@scenario()
async def two_processes_with_one_disk_id(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    old = stage.process(stage.one)
    stage.world.move(stage.one)
    await stage.until(lambda: stage.process(stage.one).ready)
    # The old one holds the lease, and the new one has no lock that proves it dead.
    first = stage.asking(stage.one, stage.record())
    await asyncio.sleep(1)
    stage.expect(old.believes(CELL), "the old process lost its lease")
    stage.expect(not first.done(), "the new process did not wait")
    reply = await first
    stage.expect(reply.kind == "done", "the new process is never served")
    await asyncio.sleep(3)


@scenario(small=True, idle_secs=1.0)
async def a_claim_in_the_place_of_a_collected_record(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await asyncio.sleep(8)
    key = f"cells/{CELL}/meta/{stage.top + 1:020d}.json"
    for _ in range(40):
        await stage.done(stage.two, stage.record())
        await asyncio.sleep(0.6)
    # What node one remembers is long superseded, and the record that did so is deleted.
    stage.expect(key not in stage.world.bucket.objects, "nothing was collected")
    reply = await stage.ask(stage.one, stage.record())
    stage.expect(reply.kind == "elsewhere", f"a stale claim ended as {reply.kind}")


@scenario(latency=(0.05, 0.05), max_open_cells=100, ttl=3.0)
async def many_cells_keep_their_leases(stage: Stage) -> None:
    cells = [f"c{number}" for number in range(60)]
    for _ in range(12):
        asked = [stage.asking(stage.one, stage.record(), cell) for cell in cells]
        await asyncio.wait(asked)
        await asyncio.sleep(1)
        process = stage.process(stage.one)
        lapsed = [cell for cell in cells if not process.believes(cell)]
        stage.expect(not lapsed, f"leases lapsed: {lapsed}")


@scenario()
async def no_request_waits_for_a_slow_upload(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    stage.one.faults.latency = (1.0, 1.0)
    await stage.done(stage.one, stage.record(200_000))
    await asyncio.sleep(0.7)
    for _ in range(5):
        began = stage.loop.time()
        await stage.done(stage.one, stage.record())
        stage.expect(stage.loop.time() - began < 0.1, "a request waited for the bucket")
        await asyncio.sleep(0.3)


@scenario()
async def one_cell_that_fails_stops_no_other(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.done(stage.one, stage.record(), "c1")
    broken = stage.process(stage.one).tenures["c1"]

    async def fail(**_: object) -> None:
        raise StoreFault("made to fail")

    broken.sync = fail  # type: ignore[method-assign]
    await stage.done(stage.one, stage.record(), "c1")
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published, 5)
    del broken.sync


@scenario()
async def a_stop_publishes_and_releases(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.done(stage.one, stage.record())
    process = stage.process(stage.one)
    process.drain()
    await stage.until(lambda: process.life.dead, 10)
    stage.expect(stage.published, "a clean stop left something behind")
    began = stage.loop.time()
    await stage.done(stage.two, stage.record())
    stage.expect(stage.loop.time() - began < 1, "the cell was not released")


@scenario()
async def a_short_outage_is_caught_up_with(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    stage.one.faults.partitioned = True
    for _ in range(4):
        await stage.done(stage.one, stage.record())
        await asyncio.sleep(0.4)
    stage.world.calm(stage.one)
    await stage.until(lambda: stage.published, 10)


@scenario()
async def many_small_syncs_stay_few_pieces(stage: Stage) -> None:
    for _ in range(150):
        await stage.done(stage.one, stage.record())
        await asyncio.sleep(0.6)
    await stage.until(lambda: stage.published)
    pieces = stage.history.watch.newest[CELL]["pieces"]
    stage.expect(len(pieces) <= 64, f"{len(pieces)} pieces")
    stage.kill(stage.one)
    await asyncio.sleep(6)
    await stage.read(stage.two)


@scenario()
async def a_list_that_fails_is_no_empty_list(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    stage.two.faults.list_failure = stage.two.faults.get_failure = 1.0
    reply = await stage.ask(stage.two, stage.record())
    stage.expect(reply.kind == "unknown", f"{reply.kind} without having seen the bucket")


@scenario(idle_secs=1000.0)
async def a_restore_beside_an_older_copy_with_a_log(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    await stage.done(stage.one, stage.record())
    stage.kill(stage.one)
    await asyncio.sleep(6)
    await stage.done(stage.two, stage.record())
    process = stage.process(stage.two)
    process.drain()
    await stage.until(lambda: process.life.dead)
    await stage.start(stage.one)
    await stage.done(stage.one, stage.record())
    stage.expect(stage.orphans(stage.one) == [f"{CELL}.1"], "the overtaken write is not kept")


@scenario()
async def a_release_whose_answer_is_lost(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    stage.one.faults.lost_answer = 1.0
    process = stage.process(stage.one)
    process.drain()
    await asyncio.sleep(0.5)
    await stage.done(stage.two, stage.record())
    stage.world.calm(stage.one)
    await stage.until(lambda: process.life.dead, 40)


@scenario()
async def clocks_of_other_years(stage: Stage) -> None:
    stage.one.clock.off = 73 * 365 * 86400.0
    stage.two.clock.off = -3 * 365 * 86400.0
    await stage.done(stage.one, stage.record())
    reply = await stage.ask(stage.two, stage.record())
    stage.expect(reply.kind == "elsewhere", "a lease was taken for over")
    stage.kill(stage.one)
    await asyncio.sleep(6)
    await stage.done(stage.two, stage.record())


@scenario(small=True)
async def what_was_deleted_stays_deleted(stage: Stage) -> None:
    for round_ in range(12):
        await stage.done(stage.one, stage.blob("k"))
        await stage.done(stage.one, stage.record(400))
        await asyncio.sleep(0.6)
        await stage.gone(stage.one, "k")
        await asyncio.sleep(0.6 if round_ % 2 else 0.0)
    await stage.until(lambda: stage.published)
    stage.kill(stage.one)
    await asyncio.sleep(6)
    stage.expect(await stage.blob_of(stage.two) is None, "a deleted blob is back")


@scenario()
async def a_create_that_lands_after_its_rows_were_sent_again(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    stage.one.faults.late, stage.one.faults.late_by = 1.0, (3.0, 3.0)
    await stage.done(stage.one, stage.record())
    await asyncio.sleep(0.6)
    stage.world.calm(stage.one)
    for _ in range(6):
        await stage.done(stage.one, stage.record())
        await asyncio.sleep(0.6)
    await stage.until(lambda: stage.published)


@scenario()
async def an_upload_of_two_minutes_is_not_swept(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    stage.one.faults.latency = (0.0, 0.0)
    await stage.done(stage.one, stage.record(100_000))
    stage.at(lambda change: change.key.endswith((".seg", ".db")), lambda: _slow(stage, 75.0))
    await asyncio.sleep(1)
    for _ in range(170):
        await stage.ask(stage.one, Touch())
        await asyncio.sleep(1)
    await stage.until(lambda: stage.published)


def _slow(stage: Stage, secs: float) -> None:
    """The answer to the upload takes long, and nothing else does."""
    stage.one.faults.latency = (secs, secs)

    def quick() -> None:
        stage.one.faults.latency = (0.01, 0.01)

    stage.loop.later(0.001, quick)


@scenario(ack_bucket=True)
async def reads_and_no_ops_wait_for_the_bucket_too(stage: Stage) -> None:
    first = stage.record()
    await stage.done(stage.one, first)
    stage.one.faults.latency = (0.8, 0.8)
    swap = stage.asking(stage.one, stage.blob())
    await asyncio.sleep(0.1)
    # None of these may be answered before the blob is published: each saw it, or came after it.
    later = [stage.asking(stage.one, operation) for operation in (first, Touch())]
    await asyncio.wait([swap, *later])


@scenario(slow_commit=0.3)
async def what_was_fenced_after_its_commit_is_not_done_twice(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    append = stage.record()
    stage.one.faults.partitioned = True
    asked = stage.asking(stage.one, append)
    await asyncio.sleep(0.001)
    stage.world.pause(stage.process(stage.one).life, 10)
    await asyncio.sleep(7)
    await stage.done(stage.two, stage.record())
    stage.world.calm(stage.one)
    reply = await asked
    if reply.kind == "elsewhere":
        await stage.done(stage.two, append)


@scenario()
async def an_outage_leaves_dirty_cells_to_be_published(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    await stage.done(stage.one, stage.record())
    stage.one.faults.partitioned = True
    await asyncio.sleep(30)
    stage.world.calm(stage.one)
    await stage.until(lambda: stage.published, 10)
    stage.expect(not stage.orphans(stage.one), "it is an orphan though nobody took it over")


@scenario()
async def a_record_of_the_process_before_is_no_win(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    # A sync is on its way when the process dies; it lands after the next one has looked.
    stage.one.faults.late, stage.one.faults.late_by = 1.0, (0.93, 0.93)
    await stage.done(stage.one, stage.record())
    await asyncio.sleep(0.55)
    stage.kill(stage.one)
    stage.world.calm(stage.one)
    stage.one.faults.latency = (0.2, 0.2)
    await stage.start(stage.one)
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published, 20)


@scenario()
async def a_late_delete_meets_no_new_object(stage: Stage) -> None:
    for _ in range(4):
        await stage.done(stage.one, stage.record(100_000))
        await asyncio.sleep(1)
    stage.one.faults.late, stage.one.faults.late_by = 0.3, (20.0, 60.0)
    for _ in range(60):
        await stage.ask(stage.one, stage.record(20_000))
        await asyncio.sleep(5)
    stage.world.calm(stage.one)
    await asyncio.sleep(70)
    stage.kill(stage.one)
    await asyncio.sleep(6)
    await stage.read(stage.two)


@scenario()
async def writes_up_to_the_release_are_in_it(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    process = stage.process(stage.one)
    stage.one.faults.latency = (0.2, 0.2)
    asked = [stage.asking(stage.one, stage.record(50_000)) for _ in range(5)]
    process.drain()
    for _ in range(20):
        if process.life.dead:
            break
        asked.append(stage.asking(stage.one, stage.record()))
        await asyncio.sleep(0.05)
    await asyncio.wait(asked)
    await stage.until(lambda: process.life.dead, 40)
    stage.expect(stage.published, "a write was acknowledged and not released with the rest")


@scenario(ack_bucket=True)
async def a_write_in_the_bucket_is_not_said_to_be_undone(stage: Stage) -> None:
    await stage.done(stage.one, stage.blob())
    held = (await stage.blob_of(stage.one)).data
    condition = Condition((Match(frozenset({digest(held)})),))
    stage.at_epoch(stage.top + 1, lambda: setattr(stage.one.faults, "partitioned", True))
    asked = stage.asking(stage.one, PutBlob("k", b"mine", condition))
    await asyncio.sleep(6)
    await stage.done(stage.two, stage.blob())
    stage.world.calm(stage.one)
    reply = await asked
    stage.expect(reply.kind != "elsewhere", "it was published, and said not to be done")


@scenario()
async def a_holder_that_lost_to_its_own_disk_touches_nothing(stage: Stage) -> None:
    await stage.done(stage.one, stage.record())
    await stage.until(lambda: stage.published)
    old = stage.process(stage.one)
    stage.world.pause(old.life, 9)
    stage.world.move(stage.one)
    await stage.until(lambda: stage.process(stage.one).ready)
    await stage.done(stage.one, stage.record())
    before = sorted(path.name for path in old.directory.root.glob("cells/*/*"))
    attempt = stage.history.ask("late", CELL, stage.record(), old)
    old.ask(attempt)
    await stage.until(lambda: old.life.dead, 30)
    left = sorted(path.name for path in old.directory.root.glob("cells/*/*"))
    stage.expect(left == before, f"it tidied up: {left}, not {before}")
