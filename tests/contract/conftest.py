"""The server that the contract is checked on: a node of ours, or one that the environment names.

`CELLSTORE_CONTRACT_URL` and `CELLSTORE_CONTRACT_TOKEN` name a running server;
`CELLSTORE_CONTRACT_TARGET=reference` says that it is the reference, whose differences are listed
in `differences.py`: each listed test must fail there, and every other one must pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.contract.differences import DIFFERENCES
from tests.support.client import Client
from tests.support.processes import node

TOKEN = "contract-token"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CELLSTORE_CONTRACT_TARGET") != "reference":
        return
    for item in items:
        name = item.nodeid.rpartition("::")[2]
        reason = DIFFERENCES.get(name) or DIFFERENCES.get(name.partition("[")[0])
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL and token of the server."""
    url = os.environ.get("CELLSTORE_CONTRACT_URL")
    if url is not None:
        yield url, os.environ.get("CELLSTORE_CONTRACT_TOKEN", TOKEN)
        return
    with node(tmp_path_factory.mktemp("contract") / "data", token=TOKEN) as process:
        yield process.url, TOKEN


@pytest.fixture(scope="session")
def client(server: tuple[str, str]) -> Iterator[Client]:
    url, token = server
    client = Client(url, token)
    yield client
    client.close()


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """The path of a run that no other test uses."""
    return f"/runs/{_fresh(request.node.originalname)}"


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Makes ids that nobody has used."""
    return _fresh


_numbers = count()


def _fresh(base: str) -> str:
    return f"{base[:150]}-{os.getpid()}-{next(_numbers)}"
