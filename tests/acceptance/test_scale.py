"""Many runs, many connections, a full disk and a corrupt cell: the other runs are served."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellstore.directory import DATABASE, FIRST_TERM, DataDirectory
from tests.support.client import Client, record
from tests.support.processes import Process, free_port, node, wait_for

RUNS = 10_000


@pytest.fixture(scope="module")
def many_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with 10,000 runs: copies of one that a node made."""
    root = tmp_path_factory.mktemp("many") / "data"
    with node(root) as process, Client(process.url) as client:
        client.put("/runs/run-00000/blobs/k", b"value")
    directory = DataDirectory(root)
    made = (directory.copy("run-00000", FIRST_TERM) / DATABASE).read_bytes()
    for number in range(1, RUNS):
        copy = directory.copy(f"run-{number:05}", FIRST_TERM)
        copy.mkdir(parents=True)
        (copy / DATABASE).write_bytes(made)
    return root


def test_many_runs_within_bounds(many_runs: Path, report: Callable[[str], None]) -> None:
    assert max(len(list(folder.iterdir())) for folder in many_runs.glob("cells/*")) < 100
    with node(many_runs, "--max-open-cells=100") as process, Client(process.url) as client:
        start_kib, start_files = process.resident_kib(), process.descriptors()
        assert len(client.get("/runs").json()) == RUNS
        for number in range(0, RUNS, 5):
            answer = client.get(f"/runs/run-{number:05}/blobs/k")
            assert answer.body == b"value"
        assert len(client.get("/status").json()["cells"]) == 100
        wait_for(lambda: process.descriptors() <= start_files + 3 * 100 + 10, "closing files")
        grown = process.resident_kib() - start_kib
        report(
            f"{RUNS} runs known: {start_kib} KiB, {start_files} descriptors; "
            f"100 open after use of {RUNS // 5}: +{grown} KiB, "
            f"{process.descriptors()} descriptors"
        )
        # Some 180 KB for each open cell, and what parsing and answering leave behind.
        assert grown < 100_000
        assert process.stop() == 0


def test_a_corrupt_cell_leaves_the_others_served(many_runs: Path) -> None:
    (path,) = many_runs.glob("cells/*/run-00007.1/cell.db")
    saved = path.read_bytes()
    path.write_bytes(b"\x00" * len(saved))
    with node(many_runs) as process, Client(process.url) as client:
        answer = client.get("/runs/run-00007/blobs/k")
        assert answer.status == 500
        assert "cell `run-00007` cannot be read" in answer.text
        assert client.put("/runs/run-00007/blobs/k", b"x").status == 500
        assert client.put("/runs/run-00008/blobs/k", b"x").body == b"ok"
        (broken,) = client.get("/status").json()["broken"]
        assert broken["cell"] == "run-00007"
        # A client whose lease request fails otherwise than with 409 goes on without a lease.
        lease = client.put("/runs/run-00007/blobs/lease.json", b"{}", if_none_match="*")
        assert lease.status == 409
        assert lease.json()["owner"] == "unknown"
        path.write_bytes(saved)
        assert client.get("/runs/run-00007/blobs/k").body == b"value"
        assert client.get("/status").json()["broken"] == []
    assert process.log().count("cell broken") == 1


def test_500_idle_connections(many_runs: Path, report: Callable[[str], None]) -> None:
    with node(many_runs) as process, Client(process.url) as client, contextlib.ExitStack() as stack:
        before = process.resident_kib()
        for number in range(500):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", process.port)))
            if number % 2:
                idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        for number in range(100):
            assert client.post("/runs/run-00001/records", record(number)).body == b"ok"
        report(f"500 idle connections: +{process.resident_kib() - before} KiB")


def test_connections_leave_descriptors_for_cells(tmp_path: Path) -> None:
    port = free_port()
    serve = f"{sys.executable} -m cellstore serve --listen 127.0.0.1:{port} --data-dir {tmp_path}/d"
    limited = ["bash", "-c", f"ulimit -n 256; exec {serve}"]
    process = Process(limited, port, tmp_path / "log").ready()
    try:
        with contextlib.ExitStack() as stack, Client(process.url) as client:
            assert client.put("/runs/r-0/blobs/k", b"v").body == b"ok"
            for _ in range(300):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for number in range(1, 80):
                assert client.put(f"/runs/r-{number}/blobs/k", b"v").body == b"ok"
                assert client.get(f"/runs/r-{number}/blobs/k").body == b"v"
        assert process.stop() == 0
    finally:
        process.end()
    assert "Traceback" not in process.log()


# A full disk, for real: a small file system of its own.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB. Mounting one needs a privilege that not every user has."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here: run as root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with node(small_disk / "data", "--idle-secs=3600") as process, Client(process.url) as client:
        for run in ("open", "asleep"):
            assert client.post(f"/runs/{run}/records", record(1)).body == b"ok"
            assert client.put(f"/runs/{run}/blobs/k", run).body == b"ok"
        process.stop()
    with node(small_disk / "data", "--idle-secs=3600") as process, Client(process.url) as client:
        assert client.get("/runs/open/blobs/k").body == b"open"
        fill(ballast)
        refused = [
            client.put("/runs/open/blobs/large", bytes(1_000_000)),
            client.put("/runs/asleep/blobs/large", bytes(1_000_000)),
            client.put("/runs/new/blobs/k", bytes(1_000_000)),
            client.post("/runs/new/records", record(1)),
            client.post("/runs/asleep/records", record(2)),
        ]
        assert [answer.status for answer in refused] == [507] * 5
        assert all("the disk is full" in answer.text for answer in refused)
        assert client.put("/runs/asleep/blobs/lease.json", b"{}").status == 409
        # What was there is served, also from a cell that cannot be opened for writing.
        assert client.get("/runs/open/blobs/k").body == b"open"
        assert client.get("/runs/asleep/blobs/k").body == b"asleep"
        assert len(client.get("/runs/asleep/records").json()) == 1
        status = client.get("/status").json()
        assert status["broken"] == []
        assert client.get("/runs").json() == ["asleep", "open"]
        assert process.log().count("disk full, writes are refused") == 1
        assert "disk has room again" not in process.log()
        # There is room again: the node goes on, and nothing of the refused writes is there.
        ballast.unlink()
        assert client.get("/runs/open/blobs").json() == ["k"]
        assert client.get("/runs/new/records").status == 404
        for run in ("open", "asleep", "new"):
            assert client.post(f"/runs/{run}/records", record(2)).body == b"ok"
            assert client.put(f"/runs/{run}/blobs/large", bytes(100_000)).body == b"ok"
        assert len(client.get("/runs/asleep/records").json()) == 2
        assert "disk has room again" in process.log()
        assert process.stop() == 0
    assert "broken" not in process.log().replace('"broken": []', "")


def test_a_node_starts_on_a_full_disk(small_disk: Path) -> None:
    with node(small_disk / "data") as process, Client(process.url) as client:
        assert client.put("/runs/a/blobs/k", b"v").body == b"ok"
        assert client.put("/registry/name", '{"a":1}').body == b"ok"
        process.stop()
    fill(small_disk / "ballast")
    with node(small_disk / "data") as process, Client(process.url) as client:
        assert client.get("/runs/a/blobs/k").body == b"v"
        assert client.get("/registry").json() == [{"a": 1}]
        assert client.put("/runs/a/blobs/k", bytes(100_000)).status == 507


def test_a_first_write_needs_no_more_room_than_it_takes(small_disk: Path) -> None:
    with node(small_disk / "data") as process, Client(process.url) as client:
        for size in range(1_000_000, 3_200_000, 200_000):
            answer = client.put(f"/runs/r-{size}/blobs/k", bytes(size))
            left = list(small_disk.glob(f"data/cells/*/r-{size}.1/*"))
            if answer.status == 200:
                # All of it is in the file that was synced, nothing in a log that was not.
                assert [path.name for path in left] == ["cell.db"]
                assert left[0].stat().st_size >= size
                left[0].unlink()
                left[0].parent.rmdir()
            else:
                assert answer.status == 507
                assert left == []
        assert list((small_disk / "data" / "staging").iterdir()) == []


def fill(ballast: Path) -> None:
    """Write until nothing more fits."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_disk_that_fills_under_load(small_disk: Path) -> None:
    with node(small_disk / "data") as process, Client(process.url) as client:
        acknowledged: list[int] = []
        refused = 0
        for number in range(3000):
            answer = client.post("/runs/a/records", record(number, pad="x" * 2000))
            assert answer.status in (200, 507)
            if answer.status == 200:
                acknowledged.append(number)
            else:
                refused += 1
            if refused > 20:
                break
        assert refused > 20
        stored = [entry["seq"] for entry in client.get("/runs/a/records").json()]
        assert stored == acknowledged
        process.kill()
    # Killed on the full disk: every acknowledged record is still there.
    copy = small_disk.parent / "copy"
    shutil.copytree(small_disk / "data", copy)
    with node(copy) as process, Client(process.url) as client:
        stored = [entry["seq"] for entry in client.get("/runs/a/records").json()]
        assert stored == acknowledged
