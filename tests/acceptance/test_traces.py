"""Recorded traffic of a real client, replayed in order, gets the answers that were recorded."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Client
from tests.support.processes import node

TRACES = Path(__file__).parents[1] / "traces"


def body(recorded: dict[str, str] | None) -> bytes | None:
    if recorded is None:
        return None
    return (
        base64.b64decode(recorded["base64"]) if "base64" in recorded else recorded["text"].encode()
    )


def replay(client: Client, name: str) -> int:
    """Send a trace's requests; returns how many there were."""
    # Not splitlines(): records hold other line separators.
    lines = (TRACES / name).read_text().rstrip("\n").split("\n")
    for number, line in enumerate(lines):
        entry: dict[str, Any] = json.loads(line)
        headers = {k: v for k, v in entry["headers"].items() if k != "accept-encoding"}
        answer = client.request(entry["method"], entry["path"], body(entry["body"]), headers)
        where = f"{name} line {number + 1}: {entry['method']} {entry['path']}"
        assert (answer.status, answer.headers["content-type"]) == (
            entry["status"],
            entry["content_type"],
        ), where
        expected = body(entry["answer"])
        if entry["content_type"] == "application/json":
            assert answer.json() == json.loads(expected or b""), where
        else:
            assert answer.body == (expected or b""), where
    return len(lines)


@pytest.mark.parametrize(
    "names",
    [
        ["order.jsonl", "order-resume-cold.jsonl"],
        ["approve-pause.jsonl"],
        ["serve.jsonl"],
        ["slow-killed.jsonl", "slow-resumed-cold.jsonl"],
    ],
    ids=lambda names: names[0],
)
def test_the_same_answers(tmp_path: Path, names: list[str]) -> None:
    with node(tmp_path / "data") as process:
        with Client(process.url) as client:
            assert sum(replay(client, name) for name in names) > 40
    assert '"level": "error"' not in process.log()
