"""A data directory knows itself: what was copied or moved is not taken for the original."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cellstore.directory import DataDirectory
from cellstore.errors import StartRefused
from cellstore.identity import boot_id, declare, disk_id, known_boots


def acquired(root: Path) -> DataDirectory:
    directory = DataDirectory(root)
    directory.acquire()
    return directory


def test_the_disk_keeps_its_id(tmp_path: Path) -> None:
    directory = acquired(tmp_path / "a")
    assert disk_id(directory, "first") == "first"
    assert disk_id(directory, "second") == "first"
    boot = boot_id(directory)
    directory.release()
    again = acquired(tmp_path / "a")
    assert disk_id(again, "third") == "first"
    assert boot_id(again) == boot
    again.release()


@pytest.mark.parametrize(("what", "expected"), [("moved", "first"), ("copied", "other")])
def test_a_copy_is_refused_until_it_is_said_what_it_is(
    tmp_path: Path, what: str, expected: str
) -> None:
    directory = acquired(tmp_path / "a")
    disk_id(directory, "first")
    boot = boot_id(directory)
    directory.release()
    # A tree that is copied gets new inodes while the old ones are in use.
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = acquired(tmp_path / "b")
    assert boot_id(copy) != boot
    with pytest.raises(StartRefused, match=r"identity moved --data-dir .*identity copied"):
        disk_id(copy, "new")
    assert declare(copy, what, "other") == expected
    assert disk_id(copy, "new") == expected
    copy.release()
    original = acquired(tmp_path / "a")
    assert disk_id(original, "new") == "first"
    original.release()


def test_a_moved_directory_that_stays_on_its_file_system_needs_nothing(tmp_path: Path) -> None:
    directory = acquired(tmp_path / "a")
    disk_id(directory, "first")
    directory.release()
    (tmp_path / "a").rename(tmp_path / "b")
    moved = acquired(tmp_path / "b")
    assert disk_id(moved, "new") == "first"
    moved.release()


def test_an_unreadable_identity_is_refused(tmp_path: Path) -> None:
    directory = acquired(tmp_path / "a")
    (directory.root / "disk").write_text("{}")
    with pytest.raises(StartRefused, match="holds no disk id"):
        disk_id(directory, "new")
    directory.release()


def test_a_directory_knows_its_runs_and_not_those_of_its_copy(tmp_path: Path) -> None:
    directory = acquired(tmp_path / "a")
    assert known_boots(directory, "one") == {"one"}
    assert known_boots(directory, "two") == {"one", "two"}
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = acquired(tmp_path / "b")
    assert known_boots(copy, "three") == {"one", "two", "three"}
    assert known_boots(directory, "two") == {"one", "two"}
    copy.release()
    directory.release()
