"""Which disk this data directory is, and which run of it on which kernel this process is.

The disk's id tells a node's own copies from a stranger's. A directory that was copied has the id
of the original, so the file that holds it notes its own inode: a copy has another one, and the
node refuses to start until it is told what happened.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from cellstore.directory import DataDirectory
from cellstore.errors import StartRefused

_FILE = "disk"
_BOOTS = "boots"
_BOOTS_KEPT = 100
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def disk_id(directory: DataDirectory, fresh: str) -> str:
    """The id of the disk: `fresh` at the first start, and from then on what was kept.

    Raises StartRefused when the directory was moved or copied since.
    """
    path = directory.root / _FILE
    if not path.exists():
        _note(directory, fresh)
    disk, inode = _noted(directory)
    if path.stat().st_ino != inode:
        raise StartRefused(
            f"--data-dir {directory.root} was moved or copied. If the original is gone: "
            f"cellstore identity moved --data-dir {directory.root}. "
            f"If it may be used again: cellstore identity copied --data-dir {directory.root}"
        )
    return disk


def declare(directory: DataDirectory, what: str, fresh: str) -> str:
    """Say that a locked directory was `moved` (it keeps its id) or `copied` (it gets `fresh`)."""
    path = directory.root / _FILE
    if what == "copied" or not path.exists():
        _note(directory, fresh)
        return fresh
    disk, _ = _noted(directory)
    _note(directory, disk)
    return disk


def boot_id(directory: DataDirectory) -> str:
    """What no other kernel, and no other place of the directory, has: a hash of both."""
    lock = os.fstat(directory.lock_descriptor)
    told = f"{_BOOT_ID.read_text().strip()} {lock.st_dev} {lock.st_ino}"
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def known_boots(directory: DataDirectory, boot: str) -> frozenset[str]:
    """The runs that this directory has seen; `boot`, the one now, is noted durably.

    Where the directory was moved while its old process goes on, each has runs that the other's
    copy never saw.
    """
    path = directory.root / _BOOTS
    known = path.read_text().split() if path.exists() else []
    if boot not in known:
        known = [*known[-_BOOTS_KEPT:], boot]
        text = "\n".join(known).encode() + b"\n"
        directory.write_small(_BOOTS, lambda _: text)
    return frozenset(known)


def _noted(directory: DataDirectory) -> tuple[str, int]:
    path = directory.root / _FILE
    try:
        noted = json.loads(path.read_bytes())
        return str(noted["disk"]), int(noted["inode"])
    except (ValueError, KeyError, TypeError):
        raise StartRefused(
            f"{path} holds no disk id; say that the directory was copied: "
            f"cellstore identity copied --data-dir {directory.root}"
        ) from None


def _note(directory: DataDirectory, disk: str) -> None:
    def content(descriptor: int) -> bytes:
        return json.dumps({"disk": disk, "inode": os.fstat(descriptor).st_ino}).encode()

    directory.write_small(_FILE, content)
