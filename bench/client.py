"""The handle of the load generator's process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from bench.requests import Work
from tests.support.processes import Process, clean_environment


class Measured(NamedTuple):
    """What a job took: in all, and each request; in seconds. And the bytes that came back."""

    seconds: float
    latencies: list[float]
    received: int

    @property
    def p50(self) -> float:
        """The median latency in milliseconds."""
        return median(self.latencies) * 1e3

    @property
    def throughput(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds


class Load:
    """Sends requests from a process of its own, so that it shares no interpreter with anybody."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        server: Process,
        work: Sequence[Sequence[Work]],
        before: Sequence[Sequence[Work]] | None = None,
    ) -> Measured:
        """Do the work of each connection, after what it shall do first, which is not measured."""
        before = before or [[] for _ in work]
        pairs = zip(before, work, strict=True)
        job = {
            "port": server.port,
            "connections": [{"before": first, "measured": then} for first, then in pairs],
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "no load generator"}')
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}; the server's log ends: {server.log()[-1000:]}")
        return Measured(**answer)


@contextlib.contextmanager
def load() -> Iterator[Load]:
    """A load generator, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    with process:
        try:
            yield Load(process)
        finally:
            process.kill()
