"""Tokens: comparing, rotating, and what is no token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellstore.auth import FixedTokens, NoTokens, TokenFile, parse_tokens, tokens_from
from cellstore.errors import StartRefused


def test_several_tokens_are_valid() -> None:
    tokens = FixedTokens([b"old", b"new"])
    assert tokens.allow(b"Bearer old")
    assert tokens.allow(b"Bearer new")
    for wrong in (None, b"", b"Bearer ", b"Bearer", b"bearer old", b"Bearer old ", b"old"):
        assert not tokens.allow(wrong)


def test_without_tokens_all_come_in() -> None:
    tokens = tokens_from(None, None)
    assert isinstance(tokens, NoTokens)
    assert tokens.allow(None)


def replace(path: Path, text: str) -> None:
    """As an operator's tool does: a new file in the place of the old one."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(path)


def test_a_token_is_rotated_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("old\n")
    tokens = tokens_from(None, path)
    assert tokens.allow(b"Bearer old")
    replace(path, "old\n\n  new  \n")
    tokens.refresh()
    assert tokens.allow(b"Bearer old")
    assert tokens.allow(b"Bearer new")
    replace(path, "new\n")
    tokens.refresh()
    assert not tokens.allow(b"Bearer old")


@pytest.mark.parametrize("text", ["", "\n \n", "with space inside\n", "naïve\n", None])
def test_a_slip_in_the_file_shuts_nobody_out(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text("old\n")
    tokens = TokenFile(path)
    if text is None:
        path.unlink()
    else:
        replace(path, text)
    tokens.refresh()
    tokens.refresh()
    assert tokens.allow(b"Bearer old")
    assert len(caplog.records) == 1
    replace(path, "mended\n")
    tokens.refresh()
    assert tokens.allow(b"Bearer mended")


@pytest.mark.parametrize("text", [b"", b"\n\n", b"a b", b"\xff", b"a\x00"])
def test_what_is_no_token(text: bytes) -> None:
    with pytest.raises(StartRefused):
        parse_tokens(text, "file")


def test_an_empty_token_is_an_error() -> None:
    with pytest.raises(StartRefused, match="CHIDORI_RUN_STORE_TOKEN is empty"):
        tokens_from("", None)


def test_a_token_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="--token-file"):
        tokens_from(None, tmp_path / "missing")


def test_messages_do_not_tell_tokens(tmp_path: Path) -> None:
    with pytest.raises(StartRefused) as caught:
        tokens_from("se cret", None)
    assert "se cret" not in str(caught.value)
    assert os.fsencode(tmp_path)
