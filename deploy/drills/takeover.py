"""The owner of a run is killed: another node serves it within the lease and 5 s. And re-claims.

A cell that its own node claims again, because it was restarted or because the lease of an idle one
ran out, costs one create and one LIST, and nothing is downloaded.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from deploy.drills.drill import Options, require, say
from deploy.drills.evidence import await_published
from deploy.drills.nodes import PREFIX, DrillFailed, Fleet, LocalNode, local_fleet, wall
from tests.support.client import Client, record

LEASE = 10.0
GRACE = 5.0

MIB = 1024 * 1024
SIZES = (1, 100)


def drill(options: Options) -> None:
    faults = []
    flags = ["--lease-secs", f"{LEASE:g}"]
    with local_fleet(options.place("takeover"), 2, flags, broken=options.broken) as fleet:
        fleet.start()
        for size in SIZES:
            faults += _take_over(fleet, size)
        faults += _reclaim(fleet)
    require(faults)


def _take_over(fleet: Fleet, size: int) -> list[str]:
    owner, other = fleet.nodes
    run = f"/runs/of-{size}-mib"
    with Client(owner.url) as client:
        for number in range(max(1, size // 4)):
            put = client.put(f"{run}/blobs/part-{number}", os.urandom(min(size, 4) * MIB))
            if put.status != 200:
                raise DrillFailed(f"a blob was answered {put.status} {put.text}")
        await_published([owner])
        client.post(f"{run}/records", record(1))
    await_published([owner])
    owner.kill()
    killed = wall()
    last = _newest_record(fleet, f"of-{size}-mib")
    served, refusals = _poll(other, f"{run}/records")
    say(
        f"{size} MiB: served by the other node {served - last:.1f} s after the last record, "
        f"{served - killed:.1f} s after the kill (lease {LEASE:g} s); "
        f"answers before: {refusals or 'none'}"
    )
    faults = []
    if served - last > LEASE + GRACE:
        faults.append(f"the takeover of {size} MiB took {served - last:.1f} s")
    owner.start()
    # From here on the other one is the owner.
    fleet.nodes.reverse()
    return faults


def _newest_record(fleet: Fleet, cell: str) -> float:
    """When the newest record of a cell came to the bucket, by its files."""
    folder = fleet.server.directory / fleet.server.bucket / PREFIX / "cells" / cell / "meta"
    return max(path.stat().st_mtime for path in Path(folder).glob("*.json"))


def _poll(node: LocalNode, path: str) -> tuple[float, dict[int, int]]:
    refusals: dict[int, int] = {}
    with Client(node.url) as client:
        while True:
            answer = client.get(path)
            if answer.status == 200:
                return wall(), refusals
            if answer.status not in {409, 503} or sum(refusals.values()) > 500:
                raise DrillFailed(f"{path} is answered {answer.status} {answer.text}")
            refusals[answer.status] = refusals.get(answer.status, 0) + 1
            time.sleep(0.1)


def _reclaim(fleet: Fleet) -> list[str]:
    node = fleet.nodes[0]
    run = "/runs/again"
    with Client(node.url) as client:
        client.post(f"{run}/records", record(1))
        client.post(f"{run}/records", record(2))
    await_published([node])
    faults = []
    time.sleep(LEASE + 1.0)
    faults += _count(node, run, "after the lease of an open, idle cell ran out")
    if (code := node.stop()) != 0:
        faults.append(f"the stop ended with {code}")
    node.start()
    faults += _count(node, run, "after a stop and a start")
    node.kill()
    node.start()
    # What was open at the kill is looked after by itself; let that come to an end.
    time.sleep(LEASE + 1.0)
    faults += _count(node, run, "after a kill and a start, and the lease")
    return faults


def _count(node: LocalNode, run: str, when: str) -> list[str]:
    """Count what one read of an idle cell costs the bucket."""
    lists = _lists(node)
    while _lists(node) == lists:
        # So that the listing of all runs does not fall into what is counted.
        time.sleep(0.05)
    node.network.reset()
    with Client(node.url) as client:
        began = time.perf_counter()
        answer = client.get(f"{run}/records")
        taken = time.perf_counter() - began
    counts = node.network.counts()
    calls = dict(sorted(counts["requests"].items()))
    say(f"re-claim {when}: {calls}, {counts['bytes_down']} bytes down, {taken * 1e3:.0f} ms")
    if answer.status != 200 or len(answer.json()) != 2:
        return [f"re-claim {when}: the read was answered {answer.status}"]
    if calls != {"GET list": 1, "PUT meta": 1}:
        return [f"re-claim {when}: it took {calls}"]
    return []


def _lists(node: LocalNode) -> int:
    found: int = node.network.counts()["requests"].get("GET list", 0)
    return found
