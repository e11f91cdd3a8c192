"""A real S3 server over a directory: versitygw, built once into a cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import Process, free_port

VERSION = "1.8.0"
BUCKET = "journals"
ACCESS_KEY_ID = "AKIDTESTVERSITY"
SECRET_ACCESS_KEY = "versity-secret-of-tests"


def binary() -> Path:
    """Where the cache keeps it; `XDG_CACHE_HOME` moves the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "cellstore" / f"versitygw-{VERSION}" / "bin" / "versitygw"


def install() -> Path | None:
    """Build it with go unless the cache has it: a minute or two, once. None without go."""
    path = binary()
    if path.exists():
        return path
    go = shutil.which("go")
    if go is None:
        return None
    print(f"building versitygw {VERSION} into {path.parent}, once; this takes minutes")
    command = [go, "install", f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"]
    subprocess.run(command, check=True, env=os.environ | {"GOBIN": str(path.parent)})
    return path


class Versitygw:
    """An S3 server on one port and one directory. It may be killed and started again."""

    bucket = BUCKET

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.directory = directory
        self.process: Process | None = None
        (directory / BUCKET).mkdir(parents=True)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What a node must be told to reach it, directly or (`endpoint`) through a proxy."""
        return {
            "CHIDORI_RUN_STORE_ENDPOINT": endpoint or self.endpoint,
            "CHIDORI_RUN_STORE_REGION": "us-east-1",
            "CHIDORI_RUN_STORE_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "CHIDORI_RUN_STORE_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        }

    def start(self) -> Versitygw:
        """Start it, for the first time or again. The binary must be there."""
        options = ["--port", f"127.0.0.1:{self.port}", "--keep-alive", "--quiet"]
        self.process = Process(
            [str(binary()), *options, "posix", str(self.directory)],
            self.port,
            self.directory.with_name(self.directory.name + ".log"),
            {"ROOT_ACCESS_KEY": ACCESS_KEY_ID, "ROOT_SECRET_KEY": SECRET_ACCESS_KEY},
        ).ready()
        return self

    def kill(self) -> None:
        """End it at once, as a crash does; what it stored stays."""
        if self.process is not None:
            self.process.kill()
            self.process = None


@contextlib.contextmanager
def versitygw(directory: Path) -> Iterator[Versitygw]:
    """A server on a new directory, with an empty bucket; killed at the end."""
    server = Versitygw(directory)
    try:
        yield server.start()
    finally:
        server.kill()
