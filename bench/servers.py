"""The servers under measurement, started side by side on fresh data."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.bare import Bare
from bench.client import Load
from bench.figures import HTTP, OURS, REFERENCE
from bench.requests import TOKEN, Work
from tests.support.processes import Process, free_port, node
from tests.support.reference import reference

_WARM_UP = 800
_IN_MEMORY = {"tmpfs", "ramfs"}


@dataclass
class Bench:
    """What scenarios work with."""

    folder: Path
    load: Load
    has_reference: bool
    # Scenarios that take minutes then take their short form.
    short: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, name: str) -> Path:
        """A path that nobody has used."""
        return self.folder / f"{next(self._numbers)}-{name}"

    @contextlib.contextmanager
    def servers(
        self, *options: str, ours: Sequence[str] = (), floor: bool = True
    ) -> Iterator[dict[str, Process]]:
        """Every server, started and warm. Options are for both nodes; `ours` for ours alone."""
        with contextlib.ExitStack() as stack:
            started = {
                OURS: stack.enter_context(node(self.fresh(OURS), *options, *ours, token=TOKEN))
            }
            if self.has_reference:
                started[REFERENCE] = stack.enter_context(
                    reference(self.fresh(REFERENCE), TOKEN, options)
                )
            if floor:
                started[HTTP] = stack.enter_context(http_floor(self))
            yield started

    @contextlib.contextmanager
    def warm_servers(self) -> Iterator[dict[str, Process]]:
        """Every server, after some requests of the usual kinds."""
        with self.servers() as started:
            for server in started.values():
                for kind, count in (("append", _WARM_UP), ("put", _WARM_UP), ("fetch", 100)):
                    self.load.run(server, [[Work(kind, "warm", 1, count)]])
            yield started

    @contextlib.contextmanager
    def bare(self) -> Iterator[Bare]:
        """Databases without a server."""
        bare = Bare(self.fresh("bare"))
        try:
            yield bare
        finally:
            bare.close()

    def over(
        self, servers: Mapping[str, Process], work: Callable[[int], Sequence[Work]]
    ) -> dict[str, Callable[[int], list[float]]]:
        """For each server, what does the work of a round over one connection, giving latencies."""

        def measure(server: Process) -> Callable[[int], list[float]]:
            return lambda number: self.load.run(server, [work(number)]).latencies

        return {side: measure(server) for side, server in servers.items()}


@contextlib.contextmanager
def http_floor(bench: Bench) -> Iterator[Process]:
    """The server that does nothing with a request."""
    port, path = free_port(), bench.fresh(HTTP)
    process = Process(
        [sys.executable, "-m", "bench.floor", str(port)], port, path.with_name(path.name + ".log")
    )
    try:
        yield process.ready()
    finally:
        process.kill()


def open_cells(server: Process) -> int:
    """How many cells a node holds open, as it says."""
    request = urllib.request.Request(
        f"{server.url}/status", headers={"authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return len(json.load(answer)["cells"])


def wait_hibernated(server: Process, seconds: float) -> None:
    """Wait until a node has closed all its cells. Raises TimeoutError."""
    step = 0.25
    for _ in range(int(seconds / step)):
        if open_cells(server) == 0:
            return
        # Asking is work for the node too.
        time.sleep(step)
    raise TimeoutError(f"{open_cells(server)} cells are still open after {seconds:.0f} s")


@contextlib.contextmanager
def disk_folder(chosen: Path | None) -> Iterator[Path]:
    """An empty folder on a disk, removed at the end. In memory a sync would cost nothing."""
    parent = chosen or Path(tempfile.gettempdir())
    if file_system(parent) in _IN_MEMORY and chosen is None:
        parent = Path.cwd()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=parent) as folder:
        yield Path(folder)


def file_system(path: Path) -> str:
    """The kind of file system that a path is on."""
    kinds = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        kinds[Path(mount)] = kind
    resolved = path.resolve()
    return next(kinds[each] for each in (resolved, *resolved.parents) if each in kinds)
