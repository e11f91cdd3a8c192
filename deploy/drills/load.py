"""Runs get an append a second each while the bucket is 50 ms away; no lease may lapse for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random  # noqa: TID251
from statistics import median

import orjson

from deploy.drills import wire
from deploy.drills.drill import Options, require, say
from deploy.drills.evidence import await_published
from deploy.drills.nodes import LocalNode, local_fleet

DELAY_MS = 50.0
LEASE = 15.0
SYNC = 2.0

# Runs that are founded at once, and seconds from the last one to the first that is measured.
FOUNDING = 32
WARM_UP = 10.0


@dataclass(slots=True)
class Measured:
    """`lapsed` are cells that were seen without a lease, `refused` counts answers but 200."""

    latencies: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    lapsed: set[str] = field(default_factory=set)
    lag: float = 0.0
    # The slowest answer to GET /status, and how late the drill itself was at most.
    slow: float = 0.0
    late: float = 0.0

    def add(self, reply: wire.Reply, late: float) -> None:
        if reply.status == 200:
            self.latencies.append(reply.seconds)
        else:
            self.refused[reply.status] = self.refused.get(reply.status, 0) + 1
        self.late = max(self.late, late)


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
        f"slowest /status {found.slow:.2f} s; the drill itself was at most {found.late:.2f} s late"
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
    """Each run has a connection of its own, as real clients do, and is written from its first."""
    loop = asyncio.get_running_loop()
    found = Measured()
    founding = asyncio.Semaphore(FOUNDING)
    all_there, there = asyncio.Event(), 0
    measuring = end = float("inf")

    async def write(run: int) -> None:
        nonlocal there
        client, seq = wire.Wire(node.url), 0
        async with founding:
            # All at once would be a load of its own.
            await client.ask("POST", f"/runs/load-{run}/records", wire.record(seq))
        there += 1
        if there == runs:
            all_there.set()
        at = loop.time() + rng.random()
        while at < end:
            await asyncio.sleep(at - loop.time())
            late, seq = loop.time() - at, seq + 1
            reply = await client.ask("POST", f"/runs/load-{run}/records", wire.record(seq))
            if at >= measuring:
                found.add(reply, late)
            at = max(at + 1.0, loop.time())
        client.close()

    async def watch() -> None:
        nonlocal measuring, end
        await all_there.wait()
        measuring = loop.time() + WARM_UP
        end = measuring + seconds
        client = wire.Wire(node.url)
        await asyncio.sleep(WARM_UP)
        while loop.time() < end:
            await asyncio.sleep(1.0)
            reply = await client.ask("GET", "/status")
            found.slow = max(found.slow, reply.seconds)
            for cell in orjson.loads(reply.body)["cells"]:
                if not cell["holds"]:
                    found.lapsed.add(cell["cell"])
                found.lag = max(found.lag, cell["lag_secs"])
        client.close()

    await asyncio.gather(watch(), *(write(run) for run in range(runs)))
    return found
