"""The unmodified runtime, on machines that hold an agent's source and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from tests.support.processes import clean_environment, free_port, wait_for
from tests.support.reference import binary

TOKEN = "interop-token"
AGENTS = Path(__file__).parent / "agents"
DEADLINE = 60.0


class Command:
    """A command of the runtime, with its helpers: they are one group, and die as one."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        output: Path,
        environment: Mapping[str, str],
        answer: str = "",
    ) -> None:
        self._output = output
        self._errors = output.with_suffix(".errors.log")
        asked = output.with_suffix(".stdin")
        asked.write_text(answer)
        with (
            output.open("wb") as stdout,
            self._errors.open("wb") as stderr,
            asked.open("rb") as stdin,
        ):
            self._process = subprocess.Popen(
                [str(binary()), *arguments],
                cwd=folder,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=clean_environment() | dict(environment),
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Its exit status, once it has ended by itself."""
        return self._process.wait(DEADLINE)

    def ended(self) -> str:
        """What it wrote, once it has ended well."""
        status = self.wait()
        assert status == 0, f"exit status {status}"
        return self.output

    def kill(self) -> None:
        """SIGKILL for it and its helpers, as when the machine is lost."""
        # The number of one that has ended may be another's by now.
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def run_id(self) -> str:
        """The id that it gave its run, which it tells as soon as it has one."""

        def told() -> re.Match[str] | None:
            return re.search(r"^Run id: (\S+)$", self.errors, re.MULTILINE)

        wait_for(lambda: told() is not None or not self.running, "a run id", DEADLINE)
        found = told()
        assert found is not None, "it ended without a run id"
        return found.group(1)

    def replayed(self) -> tuple[int, int]:
        """What a resumed run says at its end: calls taken from the journal, and executed."""
        found = re.search(r"\((\d+) recorded calls replayed, (\d+) executed live\)", self.errors)
        assert found is not None, "it does not say what it replayed"
        return int(found.group(1)), int(found.group(2))


class Machine:
    """A folder with an agent in it, from which the runtime works on a store."""

    def __init__(self, folder: Path, agent: str, store: str, settings: Mapping[str, str]) -> None:
        folder.mkdir()
        shutil.copy(AGENTS / agent, folder)
        self._folder = folder
        self._agent = agent
        self._commands: list[Command] = []
        self._numbers = count(1)
        home = folder.with_name(f"{folder.name}-home")
        home.mkdir()
        self._environment = {
            "CHIDORI_RUN_STORE": store,
            "CHIDORI_RUN_STORE_TOKEN": TOKEN,
            "CHIDORI_DURABILITY": "strict",
            # It does not call addresses of the machine itself unless told.
            "CHIDORI_HTTP_ALLOW_HOSTS": "127.0.0.1",
            "HOME": str(home),
        } | dict(settings)

    def run(self, **inputs: object) -> Command:
        pairs = [part for name, value in inputs.items() for part in ("-i", f"{name}={value}")]
        return self._start("run", self._agent, *pairs, "--trusted")

    def resume(self, run: str, answer: str = "") -> Command:
        """`answer` is what a person types when asked."""
        return self._start("resume", self._agent, run, "--trusted", answer=answer)

    def serve(self) -> tuple[Command, str]:
        """An agent server that listens, and its URL."""
        port = free_port()
        command = self._start("serve", self._agent, "--port", str(port), "--trusted")

        def accepts() -> bool:
            assert command.running, "the agent server ended"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return True
            return False

        wait_for(accepts, "an agent server that listens", DEADLINE)
        return command, f"http://127.0.0.1:{port}"

    def file(self, run: str, key: str) -> Path:
        """Where the runtime keeps a run's artifact on this machine."""
        return self._folder / ".chidori" / "runs" / run / key

    def files(self, run: str) -> dict[str, bytes]:
        """The run's artifacts on this machine."""
        folder = self.file(run, "")
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    def close(self) -> None:
        for command in self._commands:
            command.kill()

    def _start(self, verb: str, *arguments: str, answer: str = "") -> Command:
        output = self._folder.with_name(
            f"{self._folder.name}-{next(self._numbers)}-{verb}.log",
        )
        command = Command(
            [verb, *arguments], self._folder, output, self._environment, answer=answer
        )
        self._commands.append(command)
        return command
