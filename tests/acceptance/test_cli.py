"""The command as an operator meets it: starting, refusing to, stopping, and what it says."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cellstore import __version__
from tests.support.client import Client, record
from tests.support.processes import clean_environment, free_port, node, wait_for

CELLSTORE = str(Path(sys.executable).with_name("cellstore"))


def cellstore(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends by itself."""
    return subprocess.run(
        [CELLSTORE, *arguments],
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def events(log: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def test_version_and_help() -> None:
    assert cellstore("--version").stdout == f"cellstore {__version__}\n"
    assert "serve" in cellstore("--help").stdout
    assert "--max-open-cells" in cellstore("serve", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--listen", "nowhere"], {}, "--listen nowhere: it is not HOST:PORT"),
        (["--listen", "0.0.0.0:0"], {}, "is open to other machines and no token is set"),
        ([], {"CHIDORI_RUN_STORE_TOKEN": ""}, "CHIDORI_RUN_STORE_TOKEN is empty"),
        (["--token-file", "missing"], {}, "--token-file missing: No such file"),
        (["--token-file", "/dev/null"], {}, "/dev/null holds no token"),
        (["--idle-secs", "-1"], {}, "--idle-secs -1.0: Input should be greater than 0"),
        ([], {"CELLSTORE_MAX_BODY_MIB": "0"}, "--max-body-mib 0"),
        (["--data-dir", "/proc/none"], {}, "--data-dir /proc/none"),
        (["--listen", "192.0.2.1:9", "--insecure-no-auth"], {}, "--listen 192.0.2.1:9: Cannot"),
    ],
)
def test_a_start_that_is_refused(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], message: str
) -> None:
    defaults = {"CELLSTORE_DATA_DIR": str(tmp_path / "data"), "CELLSTORE_LISTEN": "127.0.0.1:0"}
    result = cellstore("serve", *arguments, **(defaults | environment))
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_second_node_on_the_same_directory_exits(tmp_path: Path) -> None:
    with node(tmp_path / "data") as process:
        second = cellstore("serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
        assert second.returncode == 1
        assert "is in use by another node" in second.stderr
        with Client(process.url) as client:
            assert client.get("/healthz").status == 200


def test_a_second_node_on_the_same_port_exits(tmp_path: Path) -> None:
    with node(tmp_path / "data") as process:
        address = f"127.0.0.1:{process.port}"
        second = cellstore("serve", "--data-dir", str(tmp_path / "other"), "--listen", address)
        assert second.returncode == 1
        assert f"--listen {address}: Address already in use" in second.stderr


def test_a_directory_of_the_reference_or_of_a_later_version_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "index.sqlite3").touch()
    result = cellstore("serve", "--data-dir", str(theirs), "--listen", "127.0.0.1:0")
    assert result.returncode == 1
    assert "belongs to `chidori cell-store`" in result.stderr
    later = tmp_path / "later"
    later.mkdir()
    (later / "format").write_text("2\n")
    result = cellstore("serve", "--data-dir", str(later), "--listen", "127.0.0.1:0")
    assert result.returncode == 1
    assert "has format '2'" in result.stderr


def test_a_broken_registry_keeps_no_run_from_being_served(tmp_path: Path) -> None:
    with node(tmp_path / "data") as process, Client(process.url) as client:
        client.put("/registry/name", "{}")
        client.put("/runs/a/blobs/k", b"v")
        process.stop()
    (tmp_path / "data/registry/registry.1/cell.db").write_bytes(b"rubbish" * 1000)
    with node(tmp_path / "data") as process, Client(process.url) as client:
        assert client.get("/registry").status == 500
        assert client.get("/runs/a/blobs/k").body == b"v"
        assert client.get("/runs").json() == ["a"]


def test_a_stray_file_stops_the_start_and_is_named(tmp_path: Path) -> None:
    with node(tmp_path / "data") as process:
        process.stop()
    (tmp_path / "data" / "cells" / "notes.txt").touch()
    result = cellstore("serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert result.returncode == 1
    assert "notes.txt is not a cell; move it out of the way" in result.stderr
    assert "Traceback" not in result.stderr


def test_tracebacks_show_no_content() -> None:
    code = """
import structlog
from cellstore import logs
logs.configure({style!r})
def work(secret):
    try:
        raise RuntimeError("fault")
    except RuntimeError:
        structlog.get_logger("cellstore.x").exception("failed")
work("private-content")
"""
    for style in ("text", "json"):
        result = subprocess.run(
            [sys.executable, "-c", code.format(style=style)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "RuntimeError: fault" in result.stderr
        assert "private-content" not in result.stderr.replace('work("private-content")', "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_finishes_what_is_in_flight(tmp_path: Path, number: signal.Signals) -> None:
    with node(tmp_path / "data", "--log-format=json") as process:
        acknowledged: list[int] = []

        def append(run: int) -> None:
            with Client(process.url) as client:
                for seq in range(100000):
                    try:
                        answer = client.post(f"/runs/r{run}/records", record(seq))
                    except OSError:
                        return
                    assert answer.body == b"ok"
                    acknowledged.append(run)

        threads = [threading.Thread(target=append, args=(run,)) for run in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(acknowledged) > 200, "some appends")
        assert process.stop(number) == 0
        for thread in threads:
            thread.join()
        log = events(process.log())
    assert [entry["event"] for entry in log[-2:]] == ["cell hibernated", "node stopped"]
    assert sum(entry["event"] == "cell hibernated" for entry in log) == 4
    assert not list(tmp_path.rglob("*-wal"))
    with node(tmp_path / "data") as process, Client(process.url) as client:
        assert client.get("/runs").json() == ["r0", "r1", "r2", "r3"]
        for run in range(4):
            stored = client.get(f"/runs/r{run}/records").json()
            # A write may be done whose answer was not received any more.
            assert acknowledged.count(run) <= len(stored) <= acknowledged.count(run) + 1


def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    with node(tmp_path / "data", "--drain-secs=1") as process, Client(process.url) as client:
        client._connection.putrequest("PUT", "/runs/a/blobs/k")
        client._connection.putheader("Content-Length", "10")
        client._connection.endheaders(b"half")
        assert process.stop() == 0


def test_the_log_is_json_and_tells_no_secret(tmp_path: Path) -> None:
    with node(tmp_path / "data", token="se-cret-token") as process:
        with Client(process.url, "se-cret-token") as client:
            client.post("/runs/a/records", record(1, result="private-content"))
            client.put("/runs/a/blobs/private-key", b"private-blob")
            client.post("/runs/a/records", '{"seq":-1,"private-content":1}')
        with Client(process.url, "wrong-token") as client:
            client.get("/runs")
        process.stop()
        log = process.log()
    started, *_ = events(log)
    assert started["event"] == "node started"
    assert {"node", "version", "address", "data_dir", "runs"} <= set(started)
    names = [entry["event"] for entry in events(log)]
    assert names[1:] == [
        "cell created",
        "cell opened",
        "node stopping",
        "cell hibernated",
        "node stopped",
    ]
    for secret in ("se-cret-token", "wrong-token", "private"):
        assert secret not in log
    assert f'export CHIDORI_RUN_STORE="{process.url}"' in log


def test_the_log_is_text_on_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    port = free_port()
    process = subprocess.Popen(
        [CELLSTORE, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "d")],
        env=clean_environment(),
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    text = ""
    try:
        while "export CHIDORI_RUN_STORE" not in text:
            text += os.read(leader, 4096).decode()
    finally:
        process.terminate()
        process.wait(timeout=20)
        os.close(leader)
    assert "node started" in text
    assert '"event"' not in text


def test_the_node_id_is_made_once_and_can_be_chosen(tmp_path: Path) -> None:
    def node_id(*options: str) -> str:
        with node(tmp_path / "data", *options) as process, Client(process.url) as client:
            name: str = client.get("/status").json()["node"]
            return name

    made = node_id()
    assert made.startswith("node-")
    assert node_id() == made
    assert node_id("--node-id=node-b") == "node-b"
    assert node_id() == made
