"""What a scenario stands on: nodes, machines and worlds, all of them gone when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from tests.interop.prefix import Prefix
from tests.interop.relay import Relay, relay
from tests.interop.runtime import TOKEN, Machine
from tests.interop.stored import Stored
from tests.interop.world import World, world
from tests.support.processes import NODE, Process, node, start
from tests.support.reference import reference
from tests.support.versitygw import Versitygw, versitygw


class Scene:
    """Makes what it is asked for, in one folder; every process writes a `.log` file there."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place = place
        self._stack = stack
        self._numbers = count(1)
        self._gateway: Versitygw | None = None

    def node(self, port: int | None = None) -> Process:
        """A node, always on the same data."""
        return self._stack.enter_context(node(self.place / "node", token=TOKEN, port=port))

    def prefix(self) -> Prefix:
        """An empty prefix of a bucket."""
        if self._gateway is None:
            self._gateway = self._stack.enter_context(versitygw(self.place / "bucket"))
        return Prefix(self._gateway, f"prefix-{next(self._numbers)}")

    def member(self, name: str, prefix: Prefix, *options: str, port: int | None = None) -> Process:
        """A node with a bucket, on the data that `name` stands for; it may refuse to start."""
        process = start(
            NODE,
            self.place / name,
            [*prefix.options, *options],
            TOKEN,
            port,
            prefix.environment,
        )
        self._stack.callback(process.end)
        return process

    def refused(self, name: str, prefix: Prefix, *options: str) -> str:
        """What a node says that refuses to start."""
        said = self.place / f"{name}.log"
        before = len(said.read_text()) if said.exists() else 0
        process = self.member(name, prefix, *options)
        assert process.wait() == 1, "it started"
        return process.log()[before:]

    def reference(self, name: str, prefix: Prefix) -> Process:
        """A node of the reference server with a bucket."""
        return self._stack.enter_context(
            reference(
                self.place / name,
                TOKEN,
                [*prefix.options, "--sync-secs", "1"],
                prefix.environment,
            )
        )

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
        return written[-6:] + [log for log in logs if log.name == "node.log"]
