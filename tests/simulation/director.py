"""What goes wrong in a run, and when: drawn from its seed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from tests.fakes.bucket import Mutation
from tests.simulation.profiles import Profile
from tests.simulation.world import Seat, World


class Director:
    """Makes things go wrong in a world."""

    def __init__(self, world: World, profile: Profile) -> None:
        self._world = world
        self._rng = world.rng
        self._profile = profile

    async def run(self, end: float) -> None:
        """Do what was drawn, until the time `end`."""
        rng, profile, loop = self._rng, self._profile, self._world.loop
        count = rng.randint(*profile.count)
        now = loop.time()
        times = sorted(rng.uniform(now + 1, end) for _ in range(count))
        actions = rng.choices(list(profile.actions), list(profile.actions.values()), k=count)
        for at, action in zip(times, actions, strict=True):
            await asyncio.sleep(at - loop.time())
            self.act(action, rng.choice(self._world.seats))
        await asyncio.sleep(max(0.0, end - loop.time()))

    def act(self, action: str, seat: Seat) -> None:
        """Do one thing to the node of a seat."""
        process = seat.process
        if process is None or process.life.dead:
            return
        self._world.history.note("act", action, process.name)
        getattr(self, f"_{action}")(seat, process)

    def _crash(self, seat: Seat, process: object) -> None:
        assert seat.process is not None
        self._world.end(seat.process)

    def _fuse(self, seat: Seat, process: object) -> None:
        """The process dies after so many of its steps."""
        assert seat.process is not None
        victim = seat.process
        victim.life.fuse = self._steps()
        victim.life.burn = lambda: self._world.end(victim)

    def _files(self, seat: Seat, process: object) -> None:
        """The process dies in the midst of work on files."""
        assert seat.process is not None
        seat.process.file_fuse = self._rng.randint(1, 8)

    def _pause(self, seat: Seat, process: object) -> None:
        assert seat.process is not None
        self._world.pause(seat.process.life, self._secs())

    def _fuse_pause(self, seat: Seat, process: object) -> None:
        assert seat.process is not None
        life, secs = seat.process.life, self._secs()
        life.fuse = self._steps()
        life.burn = lambda: self._world.pause(life, secs)

    def _write_pause(self, seat: Seat, process: object) -> None:
        """The process stops between a commit and its answer, for longer than its lease."""
        assert seat.process is not None
        victim = seat.process
        secs = self._world.knobs.ttl * self._rng.uniform(0.8, 3.0) + 1.5
        victim.write_fuse = self._rng.randint(1, 4)
        victim.burn_write = lambda: self._world.pause(victim.life, secs)

    def _write_kill(self, seat: Seat, process: object) -> None:
        """The process dies in the midst of a transaction."""
        assert seat.process is not None
        victim = seat.process
        victim.write_fuse = self._rng.randint(1, 4)
        victim.burn_write = lambda: self._world.end(victim)

    def _record_cut(self, seat: Seat, process: object) -> None:
        """A record lands, and then nothing gets through for longer than a lease."""
        secs = self._world.knobs.ttl * self._rng.uniform(1.0, 3.0) + 1.5

        def cut() -> None:
            self._world.history.note("cut off", seat.node, round(secs, 3))
            seat.faults.partitioned = True
            self._world.loop.later(secs, lambda: self._world.calm(seat))

        self._at_record(seat, cut)

    def _record_kill(self, seat: Seat, process: object) -> None:
        """A record lands, and its process dies before it hears of it."""
        assert seat.process is not None
        victim = seat.process
        self._at_record(seat, lambda: self._world.end(victim))

    def _at_record(self, seat: Seat, work: Callable[[], None]) -> None:
        """Do something when one of the next records of a node lands."""
        hooks, holder = self._world.bucket.hooks, seat.process
        nonces, left = self._world.history.nonces, self._rng.randint(1, 3)

        def look(mutation: Mutation) -> None:
            nonlocal left
            if mutation.data is None or "/meta/" not in mutation.key:
                return
            if nonces.get(json.loads(mutation.data)["nonce"]) is holder:
                left -= 1
                if left == 0:
                    hooks.remove(look)
                    if not self._world.healing:
                        work()

        hooks.append(look)

    def _steps(self) -> int:
        return round(2 ** self._rng.uniform(0, 9))

    def _secs(self) -> float:
        return self._rng.choice((0.1, 1.0, 1.0, 4.0)) * self._rng.random() * self._world.knobs.ttl

    def _for_a_while(self, seat: Seat, **faults: object) -> None:
        for name, value in faults.items():
            setattr(seat.faults, name, value)
        self._later(lambda: self._world.calm(seat))

    def _later(self, work: Callable[[], object]) -> None:
        secs = self._rng.choice((0.5, 2.0, 4.0, 10.0)) * self._rng.random() * self._world.knobs.ttl
        self._world.loop.later(secs, work)

    def _partition(self, seat: Seat, process: object) -> None:
        self._for_a_while(seat, partitioned=True)

    def _fuse_cut(self, seat: Seat, process: object) -> None:
        """After so many steps nothing gets through, for longer than a lease."""
        assert seat.process is not None
        life, world = seat.process.life, self._world
        secs = world.knobs.ttl * self._rng.uniform(1.0, 3.0) + 1.5

        def cut() -> None:
            world.history.note("cut off", life.name, round(secs, 3))
            seat.faults.partitioned = True
            world.loop.later(secs, lambda: world.calm(seat))

        life.fuse = self._steps()
        life.burn = cut

    def _errors(self, seat: Seat, process: object) -> None:
        rng = self._rng
        often = rng.choice((0.05, 0.3, 0.8))
        self._for_a_while(
            seat,
            fail_before=often * rng.random(),
            lost_answer=often * rng.random(),
            list_failure=often * rng.random(),
            get_failure=often * rng.random(),
            latency=rng.choice((self._world.knobs.latency, (0.0, 1.5), (0.5, 4.0))),
        )

    def _late(self, seat: Seat, process: object) -> None:
        rng = self._rng
        often = rng.choice((0.1, 0.5))
        self._for_a_while(
            seat,
            late=often * rng.random(),
            late_by=(0.1, rng.choice((2.0, 8.0, 40.0, 180.0))),
            resend=often * rng.random(),
            duplicate=often * rng.random(),
            lost_answer=often * rng.random(),
        )

    def _drain(self, seat: Seat, process: object) -> None:
        assert seat.process is not None
        seat.process.drain()

    def _move(self, seat: Seat, process: object) -> None:
        self._world.move(seat)

    def _snapshot(self, seat: Seat, process: object) -> None:
        self._world.snapshot(seat.disk)

    def _wall(self, seat: Seat, process: object) -> None:
        """Somebody sets the clock."""
        seat.clock.off += self._rng.choice((-3600.0, -2.0, -0.5, 0.5, 2.0, 3600.0))

    def _full(self, seat: Seat, process: object) -> None:
        disk = seat.disk
        disk.full = True

        def make_room() -> None:
            disk.full = False

        self._later(make_room)
