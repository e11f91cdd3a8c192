"""Preconditions: the table of RFC 9110 for writes, with the protocol's precedence."""

from __future__ import annotations

import pytest

from cellstore.conditions import digest, parse_condition

ONE = f'"{digest(b"one")}"'.encode()
TWO = f'"{digest(b"two")}"'.encode()


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "absent", "one"),
    [
        (None, b"*", True, False),
        (None, b" * ", True, False),
        (b"*", None, False, True),
        (ONE, None, False, True),
        (TWO, None, False, False),
        (TWO + b"," + ONE, None, False, True),
        (b"W/" + ONE, None, False, False),
        (b"", None, False, False),
        (ONE.strip(b'"'), None, False, False),
        (None, ONE, True, False),
        (None, b"W/" + ONE, True, False),
        (None, TWO, True, True),
        (None, b"", True, True),
        (TWO, b"*", True, False),
        (ONE, TWO, False, True),
    ],
)
def test_the_table(
    if_match: bytes | None, if_none_match: bytes | None, absent: bool, one: bool
) -> None:
    condition = parse_condition(if_match, if_none_match)
    assert condition is not None
    assert condition.holds(None) is absent
    assert condition.holds(b"one") is one


def test_no_header_is_no_condition() -> None:
    assert parse_condition(None, None) is None
