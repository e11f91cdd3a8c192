"""The nodes of a drill, and what is done to them.

`Node` and `Fleet` are what a drill knows; here they are processes of this machine, each with a
proxy of its own before one S3 server, so that its way to the bucket can be cut by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cellstore.clock import SystemClock
from tests.support.client import Client
from tests.support.processes import Process, free_port, wait_for
from tests.support.proxy import Proxy, proxy
from tests.support.versitygw import Versitygw, install, versitygw

# How long a node may take to start or to stop on a machine that has other things to do.
PATIENCE = 60.0

PREFIX = "fleet"


class DrillFailed(Exception):
    """A promise was broken, or the drill could not be carried out."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a cell that a node has logged; `at` is the wall clock's time."""

    node: str
    cell: str
    epoch: int
    term: int
    at: str


class Node(Protocol):
    """One node: how it is reached, and everything that can happen to it."""

    name: str
    url: str

    def start(self) -> None:
        """Start it on the disk it has, and wait until it serves."""

    def stop(self) -> int:
        """Ask it to stop; its exit status."""

    def kill(self) -> None:
        """End it without warning."""

    def pause(self) -> None:
        """Halt it in whatever it does."""

    def resume(self) -> None:
        """Let it go on after `pause`."""

    def cut(self, *, silently: bool) -> None:
        """Part it from the bucket: calls are refused, or (`silently`) never answered."""

    def mend(self) -> None:
        """Undo `cut`."""

    def wipe(self) -> None:
        """Give it an empty disk. Only while it is not running."""

    def events(self) -> list[dict[str, Any]]:
        """What it has logged, over all of its starts."""

    def orphans(self) -> list[Path]:
        """The copies that it keeps because another node took their cells over."""

    @property
    def network(self) -> Proxy:
        """Its way to the bucket."""


def status(node: Node, timeout: float = 10.0) -> dict[str, Any]:
    """What a node says about itself."""
    with Client(node.url, timeout=timeout) as client:
        found: dict[str, Any] = client.get("/status").json()
        return found


def claims(nodes: Sequence[Node]) -> list[Claim]:
    """All claims of a fleet, in the order of their epochs within each cell."""
    found = [
        Claim(node.name, event["cell"], event["epoch"], event["term"], event["timestamp"])
        for node in nodes
        for event in node.events()
        if event["event"] == "cell claimed"
    ]
    return sorted(found, key=lambda claim: (claim.cell, claim.epoch))


def in_orphan(orphan: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Ask the database of an orphan."""
    with contextlib.closing(sqlite3.connect(orphan / "cell.db")) as connection:
        return connection.execute(query, values).fetchall()


class LocalNode:
    """A node that is a process of this machine."""

    def __init__(
        self, name: str, folder: Path, command: Sequence[str], network: Proxy, server: Versitygw
    ) -> None:
        self.name = name
        self.network = network
        self.data = folder / name
        self._folder = folder
        self._command = command
        self._server = server
        self._port = free_port()
        self._process: Process | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def process(self) -> Process:
        """The process that runs, or ran last."""
        assert self._process is not None
        return self._process

    @property
    def _output(self) -> Path:
        return self._folder / f"{self.name}.log"

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until it serves. Raises DrillFailed if it exits instead."""
        wait_for(self._ready, f"the start of {self.name}", PATIENCE)

    def launch(self) -> None:
        """As `start`, without waiting."""
        self._process = Process(
            [
                *self._command,
                *("--listen", f"127.0.0.1:{self._port}", "--advertise", self.url),
                *("--data-dir", str(self.data), "--node-id", self.name, "--log-format", "json"),
                *("--bucket", f"{self._server.url}/{PREFIX}"),
            ],
            self._port,
            self._output,
            self._server.environment(self.network.endpoint),
        )

    def _ready(self) -> bool:
        if self.process.ended:
            raise DrillFailed(f"{self.name} did not start: {self.process.log()[-2000:]}")
        with contextlib.suppress(OSError), Client(self.url, timeout=2.0) as client:
            return client.get("/readyz").status == 200
        return False

    def stop(self) -> int:
        self.ask_to_stop()
        wait_for(lambda: self.process.ended, f"the stop of {self.name}", PATIENCE)
        return self.process.wait()

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting."""
        os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def cut(self, *, silently: bool) -> None:
        self.network.set(cut=not silently, blackhole=silently)

    def mend(self) -> None:
        self.network.set(cut=False, blackhole=False)

    def wipe(self) -> None:
        shutil.rmtree(self.data)

    def events(self) -> list[dict[str, Any]]:
        found = []
        for line in self._output.read_text(errors="replace").splitlines():
            # A kill may leave half a line, and not all output is log lines.
            with contextlib.suppress(json.JSONDecodeError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    found.append(event)
        return found

    def orphans(self) -> list[Path]:
        folder = self.data / "orphans"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def end(self) -> None:
        """End its process if there is one, whatever state it is in."""
        if self._process is not None and not self._process.ended:
            with contextlib.suppress(ProcessLookupError):
                self.resume()
            self._process.kill()


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes with one bucket. `server` is the S3 server itself."""

    nodes: list[LocalNode]
    server: Versitygw
    folder: Path

    def start(self) -> None:
        """Start all nodes, and wait until all serve."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_until_ready()


def command(broken: str | None) -> list[str]:
    """How a node is started: as it is, or broken on purpose."""
    module = ["cellstore"] if broken is None else ["deploy.drills.broken", broken]
    return [sys.executable, "-m", *module, "serve"]


@contextlib.contextmanager
def local_fleet(
    folder: Path,
    count: int,
    options: Sequence[str],
    *,
    last: Sequence[str] = (),
    broken: str | None = None,
) -> Iterator[Fleet]:
    """A bucket and `count` nodes that are not started yet; all ended at the end.

    The `last` node has options of its own beside those of all.
    """
    if install() is None:
        raise DrillFailed("versitygw is not there and cannot be built: install go")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(versitygw(folder / "s3"))
        nodes = []
        for number in range(count):
            name = f"node-{'abcdefgh'[number]}"
            network = stack.enter_context(proxy(server.endpoint, folder / f"{name}-proxy.log"))
            more = last if number == count - 1 else ()
            node = LocalNode(name, folder, [*command(broken), *options, *more], network, server)
            stack.callback(node.end)
            nodes.append(node)
        yield Fleet(nodes, server, folder)


def wall() -> float:
    """The wall clock, which the nodes' logs have too."""
    return SystemClock().reading().wall
