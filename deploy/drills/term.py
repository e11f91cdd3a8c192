"""A node with 200 dirty cells, 50 ms from the bucket, is told to stop; another serves them."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import orjson

from deploy.drills import wire
from deploy.drills.drill import Options, require, say
from deploy.drills.nodes import DrillFailed, local_fleet, status

CELLS = 200
DELAY_MS = 50.0

# Seconds that publishing and releasing all may take.
ALLOWED = 10.0


def drill(options: Options) -> None:
    # So long a cadence that nothing is published by itself before the stop.
    flags = ["--lease-secs", "60", "--sync-secs", "25", "--max-lag-secs", "60"]
    with local_fleet(options.place("term"), 2, flags, broken=options.broken) as fleet:
        fleet.start()
        leaving, staying = fleet.nodes
        for node in fleet.nodes:
            node.network.set(delay_ms=DELAY_MS)
        wire.run(lambda: _fill(leaving.url))
        dirty = sum(not cell["replicated"] for cell in status(leaving)["cells"])
        leaving.network.reset()
        began = time.perf_counter()
        code = leaving.stop()
        stopped = time.perf_counter() - began
        records = leaving.network.counts()["requests"].get("PUT meta", 0)
        say(
            f"{dirty} dirty cells of {CELLS}: stopped {stopped:.2f} s after SIGTERM, exit status "
            f"{code}, {records} records"
        )
        whole, each, faults = wire.run(lambda: _read(staying.url))
        say(
            f"the other node served all {CELLS} within {whole:.2f} s of that; each took "
            f"median {median(each) * 1e3:.0f} ms, worst {max(each) * 1e3:.0f} ms"
        )
        if dirty < CELLS:
            faults.append(f"only {dirty} cells were dirty: the drill proves too little")
        if code != 0:
            faults.append(f"the exit status was {code}")
        if stopped > ALLOWED:
            faults.append(f"the stop took {stopped:.1f} s, more than {ALLOWED:g}")
        require(faults)


async def _fill(url: str) -> None:
    client = wire.Wire(url)
    slots = asyncio.Semaphore(32)

    async def write(run: int, seq: int) -> None:
        async with slots:
            reply = await client.ask("POST", f"/runs/term-{run}/records", wire.record(seq))
            if reply.status != 200:
                raise DrillFailed(f"an append was answered {reply.status}")

    # The first write of a cell is in the bucket with its claim; the second makes it dirty.
    for seq in (1, 2):
        await asyncio.gather(*(write(run, seq) for run in range(CELLS)))
    client.close()


async def _read(url: str) -> tuple[float, list[float], list[str]]:
    client = wire.Wire(url)
    began = time.perf_counter()
    replies = await asyncio.gather(
        *(client.ask("GET", f"/runs/term-{run}/records") for run in range(CELLS))
    )
    whole = time.perf_counter() - began
    client.close()
    faults = []
    for run, reply in enumerate(replies):
        seqs = [entry["seq"] for entry in orjson.loads(reply.body)] if reply.status == 200 else []
        if seqs != [1, 2]:
            faults.append(f"run term-{run}: {reply.status}, records {seqs}")
    return whole, [reply.seconds for reply in replies], faults
