"""Real server processes: started on a free port, stopped or killed, looked into."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

DEADLINE = 20.0

# The command of a node, without its flags.
NODE = [sys.executable, "-m", "cellstore", "serve"]


def wait_for(condition: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    """Poll until `condition` holds. Raises TimeoutError naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds  # noqa: TID251
    while not condition():
        if time.monotonic() > deadline:  # noqa: TID251
            raise TimeoutError(f"{what} did not happen within {seconds} s")
        time.sleep(0.005)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A running server. Its output goes to a file, so that it never blocks on a pipe."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=clean_environment() | dict(environment or {}),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has exited."""
        return self._process.poll() is not None

    def ready(self) -> Process:
        """Wait until it accepts connections."""

        def accepts() -> bool:
            if self._process.poll() is not None:
                raise RuntimeError(f"it exited with {self._process.returncode}: {self.log()}")
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return True
            return False

        wait_for(accepts, "listening")
        return self

    def serving(self) -> Process:
        """Wait until it answers requests."""

        def answers() -> bool:
            self.ready()
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
            with contextlib.closing(connection):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    connection.request("GET", "/healthz")
                    return connection.getresponse().status > 0
            return False

        wait_for(answers, "serving")
        return self

    def log(self) -> str:
        return self.output.read_text(errors="replace")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; returns its exit status."""
        self._process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash does."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Stop it if it still runs, the hard way if need be."""
        if self._process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()

    def wait(self) -> int:
        """Wait for it to exit by itself; returns its exit status."""
        return self._process.wait(timeout=DEADLINE)

    def resident_kib(self) -> int:
        """Memory it holds, in KiB."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found.group(1))

    def descriptors(self) -> int:
        """Files and sockets it holds open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of the store."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CELLSTORE_", "CHIDORI_"))
    }


@contextlib.contextmanager
def node(
    data: Path,
    *options: str,
    token: str | None = None,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """A cellstore node serving `data`, stopped at the end if it still runs."""
    process = start(NODE, data, options, token, port, environment)
    try:
        yield process.ready()
    finally:
        process.end()


def start(
    command: Sequence[str],
    data: Path,
    options: Sequence[str] = (),
    token: str | None = None,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a server on `data` whose flags are those of a cell store."""
    port = port or free_port()
    data.parent.mkdir(parents=True, exist_ok=True)
    return Process(
        [*command, "--listen", f"127.0.0.1:{port}", "--data-dir", str(data), *options],
        port,
        data.with_name(data.name + ".log"),
        dict(environment or {}) | ({} if token is None else {"CHIDORI_RUN_STORE_TOKEN": token}),
    )
