"""A model of one run, driven by random requests, against a real server."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.client import Answer, Client
from tests.support.processes import node

SEQS = st.integers(0, 6) | st.just(2**63 - 1)
KEYS = st.sampled_from(["a", "lease.json", "dir/b", "%20", "%F0%9F%98%80", "a%2Fb"])
BLOBS = st.binary(max_size=20) | st.sampled_from([b"x" * 5000, b"y" * 5000])
VALUES = st.text(max_size=5) | st.floats(allow_nan=False, allow_infinity=False)

_numbers = itertools.count()


def tag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()}"'


class RunMachine(RuleBasedStateMachine):
    """The real run beside the simplest thing that behaves as one should."""

    client: Client

    def __init__(self) -> None:
        super().__init__()
        self.path = f"/runs/model-{next(_numbers)}"
        self.journal: dict[int, Any] = {}
        self.blobs: dict[str, bytes] = {}
        self.exists = False

    def wrote(self, answer: Answer) -> None:
        assert (answer.status, answer.body) == (200, b"ok")
        self.exists = True

    @rule(seq=SEQS, value=VALUES)
    def append(self, seq: int, value: object) -> None:
        record = {"seq": seq, "value": value}
        self.wrote(self.client.post(f"{self.path}/records", json.dumps(record)))
        self.journal[seq] = record

    @rule(seqs=st.lists(SEQS, unique=True, max_size=5), value=VALUES)
    def replace(self, seqs: list[int], value: object) -> None:
        journal = {seq: {"seq": seq, "value": value} for seq in seqs}
        body = json.dumps(list(journal.values()))
        self.wrote(self.client.put(f"{self.path}/records", body))
        self.journal = dict(journal)

    @rule(seq=SEQS, bad=st.sampled_from(["-1", "1.5", '"1"', "null"]))
    def refused(self, seq: int, bad: str) -> None:
        body = f'[{{"seq":{seq}}},{{"seq":{bad}}}]'
        assert self.client.put(f"{self.path}/records", body).status == 400
        assert self.client.post(f"{self.path}/records", f'{{"seq":{bad}}}').status == 400

    @rule(key=KEYS, data=BLOBS)
    def put(self, key: str, data: bytes) -> None:
        self.wrote(self.client.put(f"{self.path}/blobs/{key}", data))
        self.blobs[key] = data

    @rule(key=KEYS, data=BLOBS)
    def create(self, key: str, data: bytes) -> None:
        answer = self.client.put(f"{self.path}/blobs/{key}", data, if_none_match="*")
        if key in self.blobs:
            assert answer.status == 412
        else:
            self.wrote(answer)
            self.blobs[key] = data

    @rule(key=KEYS, seen=BLOBS, data=BLOBS, right=st.booleans())
    def swap(self, key: str, seen: bytes, data: bytes, right: bool) -> None:
        seen = self.blobs.get(key, seen) if right else seen
        answer = self.client.put(f"{self.path}/blobs/{key}", data, if_match=tag(seen))
        if self.blobs.get(key) == seen:
            self.wrote(answer)
            self.blobs[key] = data
        else:
            assert answer.status == 412

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.client.delete(f"{self.path}/blobs/{key}").body == b"ok"
        self.blobs.pop(key, None)

    @rule(key=KEYS, seen=BLOBS, right=st.booleans())
    def delete_swap(self, key: str, seen: bytes, right: bool) -> None:
        seen = self.blobs.get(key, seen) if right else seen
        answer = self.client.delete(f"{self.path}/blobs/{key}", if_match=tag(seen))
        if self.blobs.get(key) == seen:
            assert answer.status == 200
            del self.blobs[key]
        else:
            assert answer.status == 412

    @invariant()
    def the_server_agrees(self) -> None:
        answer = self.client.get(f"{self.path}/records")
        if self.journal:
            assert answer.json() == list(self.journal.values())
        else:
            assert (answer.status, answer.body) == (404, b"no journal")
        names = {key: key.replace("%2F", "/") for key in self.blobs}
        decoded = {"%20": " ", "%F0%9F%98%80": "😀"}
        keys = [decoded.get(name, name) for name in names.values()]
        assert self.client.get(f"{self.path}/blobs").json() == sorted(keys)
        for key, data in self.blobs.items():
            answer = self.client.get(f"{self.path}/blobs/{key}")
            assert (answer.body, answer.headers["etag"]) == (data, tag(data))
        listed = self.path.removeprefix("/runs/") in self.client.get("/runs").json()
        assert listed is self.exists


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    # Cells hibernate between requests now and then: that must not show.
    options = ("--max-open-cells=2", "--idle-secs=0.01")
    with node(tmp_path_factory.mktemp("model") / "data", *options) as process:
        with Client(process.url) as client:
            yield client


def test_a_run_behaves_as_its_model(client: Client, tmp_path: Path) -> None:
    machine = type("Machine", (RunMachine,), {"client": client})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
