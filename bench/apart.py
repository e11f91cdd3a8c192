"""Many runs at once, each appended to by a client process of its own, as agents are.

Beside `runs`, whose one lean client takes as little of the machine as can be, these clients take
theirs: about as much as a request costs a server.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from bench.figures import Figure, Target, alternate
from bench.requests import TOKEN, record
from bench.servers import Bench
from tests.support.client import Client
from tests.support.processes import Process, clean_environment


def apart(bench: Bench) -> Iterator[Figure]:
    """16 and 64 client processes, each with a run of its own."""
    rounds, requests = 5, 4800
    for count in (16, 64):
        with bench.warm_servers() as servers:
            sides = {
                side: partial(_at_once, server, count, requests // count)
                for side, server in servers.items()
            }
            taken = alternate(range(rounds), sides)
        target = Target(0.85, at_least=True)
        yield Figure("apart", f"{count} client processes, a run each", "1/s", taken, target)


def _at_once(server: Process, count: int, share: int, number: int) -> float:
    """Requests per second, from the moment on when all clients are ready."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(_client(server.url, f"{count}-{number}-{run}", share))
            for run in range(count)
        ]
        for client in clients:
            _hear(client)
        start = time.perf_counter()
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        for client in clients:
            _hear(client)
        return count * share / (time.perf_counter() - start)


def _client(url: str, run: str, share: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.apart", url, run, str(share)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )


def _hear(client: subprocess.Popen[str]) -> None:
    assert client.stdout is not None
    if not client.stdout.readline():
        raise RuntimeError("a client ended before its time")


def _append(url: str, run: str, share: int) -> None:
    with Client(url, TOKEN) as client:
        for seq in range(share + 1):
            if client.post(f"/runs/{run}/records", record(seq)).status != 200:
                raise RuntimeError("an append was refused")
            if seq == 0:
                print("ready", flush=True)
                sys.stdin.readline()
    print("done", flush=True)


if __name__ == "__main__":
    _append(sys.argv[1], sys.argv[2], int(sys.argv[3]))
