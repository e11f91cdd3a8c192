"""A bucket to replicate to, with a counting proxy before it, and nodes that use it.

Every side has a prefix of its own in one bucket, and the sides take turns, so what the proxy
counted in a turn is one side's.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.figures import OURS, REFERENCE
from bench.requests import TOKEN
from bench.servers import Bench
from tests.support import versitygw
from tests.support.client import Client
from tests.support.processes import Process, free_port, wait_for
from tests.support.proxy import Proxy, proxy
from tests.support.reference import binary

_COMMANDS = {
    OURS: [sys.executable, "-m", "cellstore", "serve"],
    REFERENCE: [str(binary()), "cell-store"],
}
# A status that takes longer is none.
_STATUS_SECS = 10
_SETTLE_SECS = 60.0
_STEP = 0.1


class Counted(NamedTuple):
    """What passed the proxy: requests by method and kind, and bytes of bodies to the bucket."""

    requests: Mapping[str, int]
    sent: int

    @property
    def total(self) -> int:
        return sum(self.requests.values())

    @property
    def records(self) -> int:
        """Records of the epoch log that were sent: one a sync, renewal, claim or release."""
        return self.requests.get("PUT meta", 0)

    @property
    def states(self) -> int:
        """Segments and snapshots that were sent."""
        return self.requests.get("PUT state", 0)

    def __add__(self, other: object) -> Counted:
        if not isinstance(other, Counted):
            return NotImplemented
        names = self.requests.keys() | other.requests.keys()
        both = {n: self.requests.get(n, 0) + other.requests.get(n, 0) for n in names}
        return Counted(both, self.sent + other.sent)


@dataclass(frozen=True)
class Bucket:
    """An S3 server, and the proxy that nodes are told is it."""

    bench: Bench
    gateway: versitygw.Versitygw
    proxy: Proxy

    @property
    def sides(self) -> list[str]:
        """Who can be measured."""
        return [OURS, REFERENCE] if self.bench.has_reference else [OURS]

    def url(self, side: str) -> str:
        return f"{self.gateway.url}/{side}"

    @property
    def environment(self) -> dict[str, str]:
        return self.gateway.environment(self.proxy.endpoint)

    @contextlib.contextmanager
    def node(self, side: str, name: str, options: Sequence[str] = ()) -> Iterator[Process]:
        """A node of either kind on a new directory and the new prefix `name`, killed at the end."""
        port, data = free_port(), self.bench.fresh(side)
        command = [*_COMMANDS[side], "--listen", f"127.0.0.1:{port}", "--data-dir", str(data)]
        process = Process(
            [*command, "--bucket", f"{self.url(side)}/{name}", *options],
            port,
            data.with_name(data.name + ".log"),
            self.environment | {"CHIDORI_RUN_STORE_TOKEN": TOKEN},
        )
        try:
            process.ready()
            if side == OURS:
                # It listens before it has found the bucket to be one that can be trusted.
                with Client(process.url) as client:
                    wait_for(lambda: client.get("/readyz").status == 200, "being ready")
            yield process
        finally:
            process.kill()

    def take(self) -> Counted:
        """What passed since the last call of this."""
        counts = self.proxy.reset()
        return Counted(counts["requests"], counts["bytes_up"])


@contextlib.contextmanager
def bucket(bench: Bench, delay_ms: float = 0.0) -> Iterator[Bucket]:
    """A bucket `delay_ms` away. Raises RuntimeError where its server is not there."""
    if not versitygw.binary().exists():
        raise RuntimeError(
            f"no S3 server at {versitygw.binary()}: `make interop` builds it, with go"
        )
    folder = bench.fresh("bucket")
    with versitygw.versitygw(folder) as gateway:
        log = folder.with_name(folder.name + "-proxy.log")
        with proxy(gateway.endpoint, log, delay_ms) as between:
            yield Bucket(bench, gateway, between)


def cells(server: Process) -> list[dict[str, Any]]:
    """A node's open cells, as its status tells. Raises OSError, a time-out too."""
    request = urllib.request.Request(
        f"{server.url}/status", headers={"authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=_STATUS_SECS) as answer:
        found: list[dict[str, Any]] = json.load(answer)["cells"]
    return found


def wait_replicated(server: Process, seconds: float = _SETTLE_SECS) -> None:
    """Wait until the bucket has all that a node holds. Raises TimeoutError."""
    for _ in range(int(seconds / _STEP)):
        if all(cell["replicated"] for cell in cells(server)):
            return
        time.sleep(_STEP)
    raise TimeoutError(f"a cell is still not replicated after {seconds:.0f} s")
