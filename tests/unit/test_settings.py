"""Settings: each is documented, and a bad one says which it is and why."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from cellstore import settings
from cellstore.cli import app
from cellstore.errors import StartRefused
from cellstore.settings import Settings

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented(name: str) -> None:
    start = f"| `{settings.flag(name)}` |"
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith(start)]
    assert rows, f"docs/settings.md does not name {settings.flag(name)}"
    default = Settings.model_fields[name].default
    if default is not None and default is not False:
        assert f"`{default}`" in rows[0]
    if name != "token":
        assert f"`CELLSTORE_{name.upper()}`" in rows[0]


def test_nothing_is_documented_that_is_not_there() -> None:
    documented = set(re.findall(r"`(--[a-z-]+)`", DOCS.read_text()))
    assert documented <= {settings.flag(name) for name in Settings.model_fields}


def test_every_setting_is_on_the_command_line() -> None:
    help_text = CliRunner().invoke(app, ["serve", "--help"], terminal_width=200).output
    for name in set(Settings.model_fields) - {"token"}:
        assert settings.flag(name) in help_text


def test_the_defaults_are_those_of_the_reference() -> None:
    chosen = settings.load()
    assert chosen.listen == "127.0.0.1:9700"
    assert chosen.data_dir == Path(".chidori/cellstore")
    assert chosen.idle_secs == 300


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"listen": "9700"}, "--listen 9700: it is not HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "--listen 127.0.0.1:99999"),
        ({"node_id": "a b"}, "--node-id a b: use 1 to 200"),
        ({"idle_secs": 0}, "--idle-secs 0: Input should be greater than 0"),
        ({"max_open_cells": 10**7}, "--max-open-cells 10000000: the limit on open files"),
        ({"max_body_mib": 2000}, "--max-body-mib 2000"),
        ({"log_format": "xml"}, "--log-format xml"),
        ({"listen": "0.0.0.0:9700"}, "--listen 0.0.0.0:9700 is open to other machines"),
        ({"listen": "[::]:9700"}, "is open to other machines"),
        ({"listen": "node.example:9700"}, "is open to other machines"),
        ({"token": "a", "token_file": "b"}, "both set"),
    ],
)
def test_bad_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(StartRefused) as caught:
        settings.load(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"listen": "127.8.8.8:1"},
        {"listen": "[::1]:1"},
        {"listen": "localhost:1"},
        {"listen": "0.0.0.0:1", "insecure_no_auth": True},
        {"listen": "0.0.0.0:1", "token": "secret"},
        {"listen": "0.0.0.0:1", "token_file": "file"},
    ],
)
def test_addresses_that_may_be_listened_on(given: dict[str, Any]) -> None:
    assert settings.load(**given).port == 1


def test_settings_do_not_change_and_do_not_show_the_token() -> None:
    chosen = settings.load(token="secret")
    with pytest.raises(ValidationError):
        chosen.listen = "127.0.0.1:1"
    assert "secret" not in repr(chosen)


@pytest.fixture
def file_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("file_limit")
def test_open_cells_follow_from_the_limit_on_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    assert settings.load().max_open_cells == 100
    settings.raise_file_limit()
    assert settings.load().max_open_cells == min(2000, hard // 4)
