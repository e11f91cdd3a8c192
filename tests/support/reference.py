"""The reference implementation, client and server: the crate `chidori`, built once into a cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.processes import Process, start

VERSION = "3.8.1"


def binary() -> Path:
    """Where the cache keeps it; `XDG_CACHE_HOME` moves the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "cellstore" / f"chidori-{VERSION}" / "bin" / "chidori"


def install() -> Path | None:
    """Build it with cargo unless the cache has it: some minutes, once. None without cargo."""
    path = binary()
    if path.exists():
        return path
    cargo = shutil.which("cargo")
    if cargo is None:
        return None
    print(f"building chidori {VERSION} into {path.parent.parent}, once; this takes minutes")
    command = [cargo, "install", "chidori", "--version", VERSION, "--no-default-features"]
    subprocess.run([*command, "--locked", "--root", str(path.parent.parent)], check=True)
    return path


@contextlib.contextmanager
def reference(
    data: Path,
    token: str | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """The reference server on `data`, killed at the end. The binary must be there."""
    process = start([str(binary()), "cell-store"], data, options, token, environment=environment)
    try:
        yield process.ready()
    finally:
        process.kill()
