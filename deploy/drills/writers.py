"""Under --ack bucket 64 clients write one run at once; each waits a round trip or two, not 64."""

from __future__ import annotations

import asyncio
from statistics import median

from deploy.drills import wire
from deploy.drills.drill import Options, require, say
from deploy.drills.nodes import DrillFailed, local_fleet
from tests.support.proxy import Proxy

WRITERS = 64
DELAY_MS = 50.0

# In round trips. A write that comes while a record is on its way waits for that and for its own.
MEDIAN_ALLOWED = 3.0
WORST_ALLOWED = 16.0


def drill(options: Options) -> None:
    each = 10 if options.short else 40
    flags = ["--ack", "bucket", "--lease-secs", "30"]
    with local_fleet(options.place("writers"), 1, flags, broken=options.broken) as fleet:
        fleet.start()
        (node,) = fleet.nodes
        node.network.set(delay_ms=DELAY_MS)
        trip, alone, crowded, puts = wire.run(lambda: _measure(node.url, node.network, each))
        in_trips = sorted(seconds / trip for seconds in crowded)
        say(f"a round trip to the bucket: {trip * 1e3:.1f} ms, {DELAY_MS:g} of them by the drill")
        say(f"one writer alone: median {median(alone) / trip:.2f} round trips an append")
        say(
            f"{WRITERS} writers, {each} appends each: median {median(in_trips):.2f} round trips, "
            f"worst {in_trips[-1]:.2f}; {len(crowded)} appends in {puts} records of the bucket"
        )
        faults = []
        if median(in_trips) > MEDIAN_ALLOWED:
            faults.append(f"the median append took more than {MEDIAN_ALLOWED:g} round trips")
        if in_trips[-1] > WORST_ALLOWED:
            faults.append(f"the worst append took more than {WORST_ALLOWED:g} round trips")
        require(faults)


async def _measure(
    url: str, network: Proxy, each: int
) -> tuple[float, list[float], list[float], int]:
    trip = await wire.round_trip(network.endpoint)
    client = wire.Wire(url)

    async def append(seq: int) -> float:
        reply = await client.ask("POST", "/runs/crowded/records", wire.record(seq))
        if reply.status != 200:
            raise DrillFailed(f"an append was answered {reply.status} {reply.body.decode()}")
        return reply.seconds

    async def write(first: int) -> list[float]:
        return [await append(seq) for seq in range(first, first + each)]

    await append(1)
    alone = [await append(seq) for seq in range(2, 12)]
    network.reset()
    crowded = await asyncio.gather(*(write(100 + n * each) for n in range(WRITERS)))
    puts = network.counts()["requests"].get("PUT meta", 0)
    client.close()
    return trip, alone, [seconds for some in crowded for seconds in some], puts
