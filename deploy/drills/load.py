"""Runs get an append a second each while the bucket is 50 ms away; no lease may lapse for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random  # noqa: TID251
from statistics import median
from typing import Any

import orjson

from deploy.drills import wire
from deploy.drills.drill import Options, require, say
from deploy.drills.evidence import await_published
from deploy.drills.nodes import LocalNode, local_fleet

DELAY_MS = 50.0
LEASE = 15.0
SYNC = 2.0


@dataclass(slots=True)
class Measured:
    """`lapsed` are cells that were seen without a lease, `refused` counts answers but 200."""

    latencies: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    lapsed: set[str] = field(default_factory=set)
    lag: float = 0.0
    late: float = 0.0


def drill(options: Options) -> None:
    faults = []
    for runs, strict in ((200, True), (1000, False)):
        faults += _one(options, runs, 20.0 if options.short else 75.0, strict=strict)
    require(faults)


def _one(options: Options, runs: int, seconds: float, *, strict: bool) -> list[str]:
    flags = ["--lease-secs", f"{LEASE:g}", "--sync-secs", f"{SYNC:g}"]
    folder = options.place(f"load-{runs}")
    with local_fleet(folder, 1, flags, broken=options.broken) as fleet:
        fleet.start()
        (node,) = fleet.nodes
        node.network.set(delay_ms=DELAY_MS)
        found = wire.run(lambda: _write(node, runs, seconds, options.rng()))
        published = await_published(fleet.nodes)
        calls = node.network.counts()["requests"]
    latencies = sorted(found.latencies)
    say(
        f"{runs} runs, {seconds:g} s: {len(latencies)} appends, median "
        f"{median(latencies) * 1e3:.1f} ms, 99 of 100 within "
        f"{latencies[len(latencies) * 99 // 100] * 1e3:.0f} ms, worst {latencies[-1]:.2f} s; "
        f"refused {found.refused or 'none'}, leases lapsed {len(found.lapsed)}"
    )
    say(
        f"longest lag {found.lag:.1f} s; all in the bucket {published:.1f} s after the last write; "
        f"{calls.get('PUT meta', 0)} records, {sum(calls.values())} calls in all; "
        f"the drill itself was at most {found.late:.2f} s late"
    )
    faults = []
    if found.lapsed:
        faults.append(f"{runs} runs: {len(found.lapsed)} leases lapsed")
    if found.refused:
        faults.append(f"{runs} runs: appends were answered {found.refused}")
    if strict and published > 2 * SYNC:
        faults.append(f"{runs} runs: {published:.1f} s until all was in the bucket")
    return faults


async def _write(node: LocalNode, runs: int, seconds: float, rng: Random) -> Measured:
    loop = asyncio.get_running_loop()
    client, found = wire.Wire(node.url), Measured()
    # All runs exist before the clock starts; a claim takes several round trips.
    slots = asyncio.Semaphore(32)

    async def found_run(run: int) -> None:
        async with slots:
            await client.ask("POST", f"/runs/load-{run}/records", wire.record(0))

    await asyncio.gather(*(found_run(run) for run in range(runs)))
    end = loop.time() + seconds

    async def append(run: int, at: float) -> None:
        seq = 0
        while at < end:
            await asyncio.sleep(at - loop.time())
            found.late = max(found.late, loop.time() - at)
            seq += 1
            reply = await client.ask("POST", f"/runs/load-{run}/records", wire.record(seq))
            if reply.status == 200:
                found.latencies.append(reply.seconds)
            else:
                found.refused[reply.status] = found.refused.get(reply.status, 0) + 1
            at = max(at + 1.0, loop.time())

    async def watch() -> None:
        while loop.time() < end:
            await asyncio.sleep(1.0)
            status: dict[str, Any] = orjson.loads((await client.ask("GET", "/status")).body)
            for cell in status["cells"]:
                if not cell["holds"]:
                    found.lapsed.add(cell["cell"])
                found.lag = max(found.lag, cell["lag_secs"])

    starts = [loop.time() + rng.random() for _ in range(runs)]
    await asyncio.gather(watch(), *(append(run, at) for run, at in enumerate(starts)))
    client.close()
    return found
