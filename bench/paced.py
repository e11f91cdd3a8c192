"""The load generator of many runs at a pace, a process of its own: `python -m bench.paced`.

Its input is one line, a job; its output is one line, what came of it. Each run has a connection and
appends at its own beat, as an agent does whose steps take a while: while an answer is outstanding
the beat passes. After the end it waits for the answers that are still to come.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, cast

import uvloop

from bench.requests import Work
from tests.support.processes import Process, clean_environment

# Clients give up after 30 s. What is answered later is waited for all the same, to be counted.
_PATIENCE = 90.0


class Paced(NamedTuple):
    """The seconds that each run's answers took, in order, and what went wrong.

    `late` are beats that passed while an answer was outstanding.
    """

    first: list[float]
    later: list[float]
    late: int
    errors: list[str]


@dataclass(frozen=True)
class Job:
    """`runs` runs of the server on `port`, one append a second each, for `seconds`."""

    port: int
    runs: int
    seconds: int


class Paces:
    """The load, once it has begun."""

    def __init__(self, server: Process, runs: int, seconds: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.paced", str(server.port), str(runs), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def hear(self) -> None:
        """Wait until the time of the load is over; answers may still be outstanding."""
        self._line()

    def end(self) -> Paced:
        """Wait for the last answer. Raises RuntimeError where the generator died."""
        with self._process:
            return Paced(**json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load generator ended before its time")
        return line


class _Run(asyncio.Protocol):
    def __init__(self, name: str) -> None:
        self.name = name
        self.latencies: list[float] = []
        self.late = 0
        self.error = ""
        # Set while no answer is outstanding that may still come.
        self.idle = asyncio.Event()
        self._transport: asyncio.Transport
        self._seq = 0
        self._sent: float | None = None
        self._answer = b""

    def beat(self) -> None:
        if self.error:
            return
        if self._sent is not None:
            self.late += 1
            return
        self._seq += 1
        (request,) = Work("append", self.name, self._seq).requests()
        self.idle.clear()
        self._sent = perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        if self._sent is not None and not self.error:
            self.error = f"no answer in {_PATIENCE:.0f} s"
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.error = self.error or (f"connection lost: {error}" if self._sent is not None else "")
        self.idle.set()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().find(b"content-length:")
        if at < 0 or len(body) < int(head[at + 15 :].split(b"\r\n", 1)[0]):
            return
        assert self._sent is not None
        self.latencies.append(perf_counter() - self._sent)
        if not self._answer.startswith(b"HTTP/1.1 200"):
            self.error = self._answer[:300].decode(errors="replace")
        self._sent, self._answer = None, b""
        self.idle.set()


async def _perform(job: Job) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    runs = [
        (await loop.create_connection(lambda n=n: _Run(f"run-{n}"), "127.0.0.1", job.port))[1]  # type: ignore[misc]
        for n in range(job.runs)
    ]
    start = loop.time() + 0.1
    for second in range(job.seconds):
        for place, run in enumerate(runs):
            await asyncio.sleep(max(0.0, start + second + place / len(runs) - loop.time()))
            run.beat()
    await asyncio.sleep(max(0.0, start + job.seconds - loop.time()))
    print("over", flush=True)
    await asyncio.wait([asyncio.create_task(run.idle.wait()) for run in runs], timeout=_PATIENCE)
    for run in runs:
        run.close()
    return {
        "first": [run.latencies[0] for run in runs if run.latencies],
        "later": [latency for run in runs for latency in run.latencies[1:]],
        "late": sum(run.late for run in runs),
        "errors": [f"{run.name}: {run.error}" for run in runs if run.error],
    }


def main() -> None:
    # A collection in the middle of a request would count as the server's time.
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_perform(Job(*map(int, sys.argv[1:]))))), flush=True)


if __name__ == "__main__":
    main()
