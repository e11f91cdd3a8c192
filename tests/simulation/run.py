"""One run: a fleet, clients and faults drawn from a seed, and a quiet end where all is checked."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import traceback
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random  # noqa: TID251
from typing import Any

import structlog

from tests.simulation.clients import Client
from tests.simulation.director import Director
from tests.simulation.ending import come_to_rest
from tests.simulation.history import History
from tests.simulation.loop import VirtualLoop, bury
from tests.simulation.machine import cut_syncs
from tests.simulation.process import Knobs
from tests.simulation.profiles import Profile
from tests.simulation.world import World, thresholds

_folder: Path | None = None


def folder() -> Path | None:
    """Where files are made and deleted: in memory, if there is such a place."""
    memory = Path("/dev/shm")
    return _folder or (memory if memory.is_dir() else None)


def use_folder(path: str) -> None:
    """Make files there from now on."""
    global _folder  # noqa: PLW0603 - once in each process
    _folder = Path(path)


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended. `digest` is that of its trace."""

    seed: int
    profile: str
    violation: str | None
    digest: str
    counts: dict[str, int]
    steps: int
    secs: float
    trace: list[tuple[Any, ...]]

    def tell(self, lines: int = 60) -> str:
        """What to print of a run that failed."""
        last = "\n".join(" ".join(map(str, event))[:400] for event in self.trace[-lines:] if lines)
        return (
            f"seed {self.seed}, profile {self.profile}: {self.violation}\n{last}\n"
            f"again: python -m tests.simulation --from {self.seed} --seeds 1 "
            f"--profile {self.profile}"
        )


Main = Callable[[World], Coroutine[Any, Any, None]]


def run_seed(seed: int, profile: Profile) -> Result:
    """Run one seed."""
    rng = Random(f"{profile.name} {seed}")
    small = rng.random() < profile.small
    knobs = Knobs(
        ttl=rng.choice(profile.ttls),
        sync_secs=rng.choice(profile.syncs),
        idle_secs=rng.choice(profile.idles),
        max_open_cells=rng.choice(profile.opens),
        ack_bucket=rng.random() < profile.ack_bucket,
        slow_disk=rng.choice((0.005, 0.2)) if rng.random() < profile.slow_disk else 0.0,
        slow_commit=rng.choice((0.0, 0.01, 0.1)),
        max_disk=rng.choice((None, None, 30_000)),
        latency=(0.05, 0.4) if rng.random() < profile.slow_bucket else (0.001, 0.03),
        no_date=rng.random() < profile.no_date,
        small=small,
    )

    async def main(world: World) -> None:
        await _live(world, profile, 1600 if small else 60)

    return play(seed, profile.name, rng, knobs, rng.randint(*profile.nodes), main)


def play(seed: int, name: str, rng: Random, knobs: Knobs, nodes: int, main: Main) -> Result:
    """Run `main` in a world of its own, and see what became of the promises."""
    loop = VirtualLoop()
    root = Path(tempfile.mkdtemp(prefix="cellstore-", dir=folder()))
    asyncio.set_event_loop(loop)
    world = World(loop, root, rng, knobs, nodes)
    history = world.history
    history.note("knobs", *knobs)
    history.on_violation = loop.stop
    try:
        with (
            _logs_to(history, str(root)),
            cut_syncs(world.cut),
            thresholds(small=knobs.small),
        ):
            work = loop.apart(main(world))
            work.add_done_callback(lambda _: loop.stop(), context=loop.bare)
            _turn(loop, history)
            if work.done() and (fault := work.exception()) is not None:
                raise fault
            for bad in loop.faults:
                history.violate(f"nobody took {bad.get('exception')!r}: {bad['message']}")
            result = _result(seed, name, history, loop)
            for process in world.processes:
                process.life.dead = True
            bury([process.life for process in world.processes])
            return result
    finally:
        world.close()
        asyncio.set_event_loop(None)
        loop.close()


def _turn(loop: VirtualLoop, history: History) -> None:
    try:
        loop.run_forever()
    except RuntimeError as fault:
        history.violate(str(fault))


def _result(seed: int, profile: str, history: History, loop: VirtualLoop) -> Result:
    digest = hashlib.sha256(repr(history.trace).encode()).hexdigest()
    violation = history.violations[0] if history.violations else None
    return Result(
        seed,
        profile,
        violation,
        digest,
        history.counts,
        loop.steps,
        loop.time(),
        history.trace,
    )


async def _live(world: World, profile: Profile, payload: int) -> None:
    rng, loop, history = world.rng, world.loop, world.history
    world.returns = profile.returns
    for seat in world.seats:
        world.start(seat)
    cells = [f"c{number}" for number in range(rng.randint(*profile.cells))]
    think = rng.choice(profile.think)
    end = loop.time() + rng.uniform(*profile.secs)
    clients = [
        Client(f"a{number + 1}", cells, world.reachable, history, rng, payload)
        for number in range(rng.randint(*profile.clients))
    ]
    works = [loop.apart(client.run(lambda: loop.time() >= end, think)) for client in clients]
    director = loop.apart(Director(world, profile).run(end))
    await asyncio.wait([*works, director])
    for work in (*works, director):
        work.result()
    if profile.count == (0, 0) and (history.counts["lost"] or history.counts["unknown"]):
        history.violate(f"without a single fault: {history.counts}")
    await come_to_rest(world, clients[0], cells, quiet=rng.random() < profile.quiet)


@contextmanager
def _logs_to(history: History, root: str) -> Iterator[None]:
    """Log lines go to the trace; one with an unexpected error is a violation."""

    def take(_: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        name = event.pop("event")
        fault = event.pop("exc_info", None)
        history.note("log", method, name, *_plain(event, root))
        if method == "exception" or fault:
            history.violate(f"unexpected: {traceback.format_exc()}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[take], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def _plain(event: MutableMapping[str, Any], root: str) -> list[tuple[str, str]]:
    """A line's fields, without what differs from one run of a seed to the next."""
    return sorted((name, str(value).replace(root, "")) for name, value in event.items())
