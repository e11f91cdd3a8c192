"""What a scenario stands on: nodes, machines and worlds, all of them gone when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tests.interop.relay import Relay, relay
from tests.interop.runtime import TOKEN, Machine
from tests.interop.stored import Stored
from tests.interop.world import World, world
from tests.support.processes import Process, node


class Scene:
    """Makes what it is asked for, in one folder; every process writes a `.log` file there."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place = place
        self._stack = stack
        self._numbers = count(1)

    def node(self, port: int | None = None) -> Process:
        """A node, always on the same data."""
        return self._stack.enter_context(node(self.place / "node", token=TOKEN, port=port))

    def relay(self, target: str) -> Relay:
        return self._stack.enter_context(relay(target))

    def world(self) -> World:
        return self._stack.enter_context(world())

    def machine(self, agent: str, store: str, settings: Mapping[str, str] | None = None) -> Machine:
        """A machine that has never seen any run."""
        folder = self.place / f"machine-{next(self._numbers)}"
        machine = Machine(folder, agent, store, settings or {})
        self._stack.callback(machine.close)
        return machine

    def stored(self, node: Process, run: str) -> Stored:
        stored = Stored(node.url, run)
        self._stack.callback(stored.close)
        return stored

    def logs(self) -> list[Path]:
        """Those written last, and the node's."""
        logs = sorted(self.place.glob("*.log"), key=lambda path: path.stat().st_mtime)
        written = [log for log in logs if log.stat().st_size and log.name != "node.log"]
        return written[-4:] + [log for log in logs if log.name == "node.log"]
