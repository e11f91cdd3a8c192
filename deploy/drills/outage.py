"""The bucket is down for 30 s, then loses answers, then answers 503: no write is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence

from deploy.drills.clients import REAL_PATIENCE
from deploy.drills.drill import Options, require, say
from deploy.drills.evidence import BOOKS, Terms, await_published, compare, writing
from deploy.drills.ledger import APPEND, Entry, read_books
from deploy.drills.nodes import Fleet, local_fleet, status, wall
from tests.support.client import Client, record
from tests.support.processes import wait_for

DOWN = 30.0
MAX_LAG = 5.0
PACE = 0.1
RUNS = [f"run-{number}" for number in range(8)]


def drill(options: Options) -> None:
    faults: list[str] = []
    for lease in (60.0, 5.0):
        faults += _down(options, lease)
    faults += _stopped(options)
    for ack in options.acks:
        for name, trouble in (
            ("a tenth of all answers is lost", {"lose_answer": 0.1}),
            ("a third of all calls is answered 503", {"unavailable": 1 / 3}),
        ):
            faults += _ill(options, ack, name, trouble)
    require(faults)


def _down(options: Options, lease: float) -> list[str]:
    """The S3 server is killed, and started again after a while."""
    lag = min(lease, MAX_LAG)
    say(f"the bucket is down for {DOWN:g} s; --ack disk, lease {lease:g} s, --max-lag-secs {lag:g}")
    folder = options.place(f"down-{lease:g}")
    flags = ["--lease-secs", f"{lease:g}", "--max-lag-secs", f"{lag:g}"]
    with local_fleet(folder, 1, flags, broken=options.broken) as fleet:
        fleet.start()
        with writing(fleet, RUNS, options.rng(), PACE, REAL_PATIENCE):
            time.sleep(5.0)
            fleet.server.kill()
            down = wall()
            time.sleep(DOWN)
            fleet.server.start()
            up = wall()
        published = await_published(fleet.nodes)
        _tell(fleet, down, up)
        say(f"all in the bucket {published:.1f} s after the last write")
        compare(fleet, RUNS, Terms(ack_bucket=False, max_lag=lag))
        return _trouble(fleet, down, up, lag, lease)


def _stopped(options: Options) -> list[str]:
    """A node is told to stop while the bucket is down; its next start publishes what it left."""
    say("a node is told to stop while the bucket is down")
    with local_fleet(options.place("stopped"), 2, ["--lease-secs", "10"]) as fleet:
        fleet.start()
        node, other = fleet.nodes
        with Client(node.url) as client:
            for run in RUNS:
                client.post(f"/runs/{run}/records", record(1))
            await_published([node])
            fleet.server.kill()
            codes = [client.post(f"/runs/{run}/records", record(2)).status for run in RUNS]
        began = wall()
        code = node.stop()
        seconds = wall() - began
        told = [event for event in node.events() if event["event"].startswith("not all was pub")]
        say(
            f"writes while it was down were answered {sorted(set(codes))}; stopped after "
            f"{seconds:.1f} s, exit status {code}, and named {[each['cells'] for each in told]} "
            "cells that were not published"
        )
        fleet.server.start()
        node.start()
        began = wall()
        wait_for(lambda: len(status(node)["cells"]) == len(RUNS), "bringing up what was left", 60)
        await_published([node])
        say(f"all of it in the bucket {wall() - began:.1f} s after the next start, unasked")
        node.stop()
        faults = [] if told else ["it did not say what was not published"]
        with Client(other.url) as client:
            for run in RUNS:
                answer = client.get(f"/runs/{run}/records")
                seqs = [entry["seq"] for entry in answer.json()] if answer.status == 200 else None
                if seqs != [1, 2]:
                    faults.append(f"{run} has {seqs} ({answer.status})")
        return faults


def _appends(fleet: Fleet) -> Sequence[Entry]:
    return [entry for entry in read_books(fleet.folder / BOOKS) if entry.what == APPEND]


def _tell(fleet: Fleet, down: float, up: float) -> None:
    times = [
        entry.answered - down
        for entry in _appends(fleet)
        if entry.acknowledged and entry.answered is not None
    ]
    during = [at for at in times if 0 < at < up - down]
    after = [at - (up - down) for at in times if at > up - down]
    refused = [(entry.answered or 0.0) - down for entry in _appends(fleet) if entry.status == 503]
    say(
        f"{len(during)} writes acknowledged while it was down, the last {max(during):.1f} s after "
        f"it went; {len(refused)} answered 503"
        + (f", the first {min(refused):.1f} s after it" if refused else "")
        + f"; the first write {min(after):.1f} s after it came back"
    )


def _trouble(fleet: Fleet, down: float, up: float, lag: float, lease: float) -> list[str]:
    faults = []
    for node in fleet.nodes:
        if node.orphans():
            faults.append(f"{node.name} has orphans: {[path.name for path in node.orphans()]}")
        faults += [
            f"{node.name} does not hold {cell['cell']}"
            for cell in status(node)["cells"]
            if not cell["holds"]
        ]
        fenced = [event for event in node.events() if event["event"] == "cell fenced"]
        faults += [f"{node.name} was fenced on {event['cell']}" for event in fenced]
    late = [
        entry
        for entry in _appends(fleet)
        if entry.acknowledged and down + min(lag, lease) + 3.0 < (entry.answered or 0.0) < up
    ]
    if late:
        faults.append(f"{len(late)} writes were acknowledged past --max-lag-secs")
    return faults


def _ill(options: Options, ack: str, name: str, trouble: dict[str, float]) -> list[str]:
    seconds = 10.0 if options.short else 30.0
    say(f"{name} for {seconds:g} s; --ack {ack}, two nodes, lease 10 s")
    folder = options.place(f"{next(iter(trouble))}-{ack}")
    flags = ["--lease-secs", "10", "--ack", ack]
    with local_fleet(folder, 2, flags, broken=options.broken) as fleet:
        fleet.start()
        with writing(fleet, RUNS, options.rng(), PACE):
            for node in fleet.nodes:
                node.network.set(**trouble)
            time.sleep(seconds)
            injected = [node.network.counts()["injected"] for node in fleet.nodes]
            for node in fleet.nodes:
                node.network.set(lose_answer=0.0, unavailable=0.0)
        say(f"injected: {', '.join(str(each) for each in injected)}")
        say(f"all in the bucket {await_published(fleet.nodes):.1f} s after the last write")
        compare(fleet, RUNS, Terms(ack_bucket=ack == "bucket", max_lag=10.0))
    return []
