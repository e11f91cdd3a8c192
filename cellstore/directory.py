"""The node's data directory: its lock, its identity, and where each cell's copy lies.

    lock                          held while a node runs; a second one exits
    format                        the number of this layout
    node-id                       the node's name, made once
    disk                          the directory's id and the inode of this very file
    boots                         the runs that it has seen, one a line
    prefix                        the id of the bucket's prefix that it belongs to
    cells/<2 hex>/<cell>.<term>/  one local copy of one cell: cell.db with its -wal and -shm
    registry/registry.<term>/     the registry, a cell like the others but no run
    dirty/<cell>.<term>           a mark: that copy may hold writes that are not in the bucket
    orphans/<cell>.<term>[.<n>]/  copies with such writes whose cell another node took over
    staging/                      copies being made; emptied at start

A copy is written in `staging/` and becomes a cell by one rename, so a directory under `cells/`
always holds at least one accepted write. Every method blocks and may raise OSError; a full disk
is raised as DiskFull.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from cellstore.errors import CellstoreError, DiskFull, StartRefused, Unavailable
from cellstore.names import is_component

FORMAT = 1

# The registry's name among the cells; no run can have it.
REGISTRY = "/registry"

DATABASE = "cell.db"
# Beside a copy's database: the newest settled record of it, without its changes. It is there if
# a record of the copy was ever settled.
HINT = "epoch.json"
FIRST_TERM = 1

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PROBE = 64 * 1024


class DataDirectory:
    """One data directory, locked by this process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cells = root / "cells"
        self._registry = root / "registry"
        self._staging = root / "staging"
        self._dirty = root / "dirty"
        self._orphans = root / "orphans"
        self._drafts = count()
        self._lock: int | None = None

    def acquire(self) -> None:
        """Make the directory if need be, lock it and check its format. Raises StartRefused."""
        try:
            _make_durable(self.root)
            self._lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as fault:
            raise StartRefused(
                f"--data-dir {self.root}: {fault.strerror}; choose a directory this user may write"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise StartRefused(
                f"--data-dir {self.root} is in use by another node; "
                "stop that one, or give this one a directory of its own"
            ) from None
        try:
            self._check_format()
            self._lay_out()
        except OSError as fault:
            raise StartRefused(f"--data-dir {self.root}: {fault.strerror}") from None

    def _lay_out(self) -> None:
        for folder in (self._staging, self._cells, self._registry, self._dirty, self._orphans):
            folder.mkdir(mode=0o700, exist_ok=True)
        for leftover in self._staging.iterdir():
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        # At every start: the one before may have been killed before it came to this.
        _sync(self._cells)
        _sync(self.root)

    def release(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def lock_descriptor(self) -> int:
        """The open lock file."""
        assert self._lock is not None
        return self._lock

    def write_small(self, name: str, content: Callable[[int], bytes]) -> None:
        """Write a small file of the root, whole; `content` is given its descriptor."""
        self._write(self.root / name, content)

    def prefix(self) -> str | None:
        """The id of the bucket's prefix that this directory belongs to; None before it has one."""
        path = self.root / "prefix"
        return path.read_text().strip() if path.exists() else None

    def bind(self, prefix: str) -> None:
        """Remember the id of the prefix, for good."""
        self.write_small("prefix", lambda _: prefix.encode())

    def node_id(self, fresh: str) -> str:
        """The node's name: `fresh` at the first start, and from then on what was kept."""
        path = self.root / "node-id"
        try:
            name = path.read_bytes().strip()
        except FileNotFoundError:
            name = fresh.encode()
            self._write(path, lambda _: name)
        if not is_component(name):
            raise StartRefused(f"{path} holds no node id; mend it or give --node-id")
        return name.decode("ascii")

    def copies(self) -> Iterator[tuple[str, int]]:
        """Each cell here with the term of its copy, read from names alone.

        Raises StartRefused for anything else that lies among them.
        """
        for folder in (self._registry, *self._cells.iterdir()):
            if not folder.is_dir():
                raise _stray(folder)
            for entry in os.listdir(folder):
                name, _, term = entry.rpartition(".")
                if not (is_component(os.fsencode(name)) and term.isascii() and term.isdigit()):
                    raise _stray(folder / entry)
                yield (REGISTRY if folder == self._registry else name), int(term)

    def copy(self, name: str, term: int) -> Path:
        """The directory of one copy of a cell."""
        if name == REGISTRY:
            return self._registry / f"registry.{term}"
        return self._cells / hashlib.sha256(name.encode()).hexdigest()[:2] / f"{name}.{term}"

    # What of the copies is not in the bucket

    def mark(self, name: str, term: int) -> None:
        """Mark a copy that is going to be written to, durably. Raises DiskFull."""
        with full_disk(f"marking cell `{name}`"):
            self._mark(name, term).touch(mode=0o600)
            _sync(self._dirty)

    def unmark(self, name: str, term: int) -> None:
        """Take a copy's mark away: all of it is in the bucket, or it is no cell any more."""
        self._mark(name, term).unlink(missing_ok=True)

    def marked(self, name: str, term: int) -> bool:
        """Whether a copy is marked."""
        return self._mark(name, term).exists()

    def _mark(self, name: str, term: int) -> Path:
        return self._dirty / (f"{name}.{term}" if name != REGISTRY else "registry")

    def marks(self) -> list[tuple[str, int]]:
        """The copies that are marked, each with its term."""
        found = []
        for entry in sorted(os.listdir(self._dirty)):
            name, _, term = entry.rpartition(".")
            if is_component(os.fsencode(name)) and term.isascii() and term.isdigit():
                found.append((name, int(term)))
        return found

    def orphan(self, name: str, term: int) -> Path:
        """Move a copy to the orphans. Returns where it is now."""
        for number in count():
            place = self._orphans / (f"{name}.{term}" if number == 0 else f"{name}.{term}.{number}")
            if not place.exists():
                break
        copy = self.copy(name, term)
        copy.rename(place)
        _sync(self._orphans)
        _sync(copy.parent)
        return place

    def orphans(self) -> list[Path]:
        """The orphans, sorted by name."""
        return sorted(self._orphans.iterdir())

    def drop(self, name: str, term: int) -> None:
        """Throw a copy away: first out of its place by one rename, then file by file."""
        copy = self.copy(name, term)
        place = self.scratch()
        try:
            copy.rename(place)
        except FileNotFoundError:
            return
        _sync(copy.parent)
        shutil.rmtree(place)

    def scratch(self) -> Path:
        """A path for something that is gone after a restart at the latest."""
        return self._staging / str(next(self._drafts))

    def stage(self) -> Path:
        """Make an empty directory for a copy to be, with an empty database file in it."""
        staging = self.scratch()
        with full_disk(f"making {staging}"):
            staging.mkdir(mode=0o700)
            (staging / DATABASE).touch(mode=0o600)
        return staging

    def discard(self, staging: Path) -> None:
        """Throw away what `stage` made."""
        shutil.rmtree(staging)

    def publish(self, staging: Path, name: str, term: int) -> None:
        """Turn a staged, closed copy into the cell's copy of that term, durably."""
        copy = self.copy(name, term)
        with full_disk(f"making cell `{name}`"):
            _make_durable(copy.parent)
            _sync(staging / DATABASE)
            _sync(staging)
            staging.rename(copy)
            try:
                _sync(copy.parent)
            except OSError:
                copy.rename(staging)
                raise

    def shortage(self) -> CellstoreError | None:
        """What there is not enough of, found out by writing: quotas do not show otherwise."""
        probe = self._staging / f"probe-{next(self._drafts)}"
        try:
            with full_disk("probing"):
                self._write(probe, lambda _: bytes(_PROBE))
                probe.unlink()
        except DiskFull as fault:
            return fault
        except OSError as fault:
            if fault.errno in (errno.EMFILE, errno.ENFILE):
                return Unavailable("no file descriptors are left; send it again")
        return None

    def _check_format(self) -> None:
        if (self.root / "index.sqlite3").exists():
            raise StartRefused(
                f"--data-dir {self.root} belongs to `chidori cell-store`, whose layout differs; "
                "give this node a directory of its own"
            )
        path = self.root / "format"
        if not path.exists():
            self._write(path, lambda _: b"%d\n" % FORMAT)
        written = path.read_bytes().strip()
        if written != b"%d" % FORMAT:
            raise StartRefused(
                f"--data-dir {self.root} has format {written.decode('utf-8', 'replace')!r} and "
                f"this version knows {FORMAT}; run the version that wrote it, or a later one"
            )

    def _write(self, path: Path, content: Callable[[int], bytes]) -> None:
        """Write a small file whole: a crash leaves the old one or the new one."""
        draft = path.with_name(path.name + ".draft")
        try:
            with draft.open("wb") as file:
                file.write(content(file.fileno()))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)
        _sync(path.parent)


@contextmanager
def full_disk(action: str) -> Iterator[None]:
    """Raise DiskFull for the system's ways of saying that there is no room."""
    try:
        yield
    except OSError as fault:
        if fault.errno in _FULL:
            raise DiskFull(f"the disk is full ({action}); make room and send it again") from None
        raise


def _stray(path: Path) -> StartRefused:
    return StartRefused(f"{path} is not a cell; move it out of the way")


def _make_durable(directory: Path) -> None:
    """Make a directory and its missing parents, each durable in the one above it."""
    if not directory.exists():
        _make_durable(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        _sync(directory.parent)


def _sync(path: Path) -> None:
    """Make a file's bytes, or the names in a directory, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
