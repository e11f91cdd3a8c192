"""Names: what is allowed, and how they are decoded."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellstore.errors import BadRequest
from cellstore.names import blob_key, component, excerpt, is_component, is_lease


@given(st.text(min_size=1, max_size=300))
def test_a_key_is_decoded_once(key: str) -> None:
    assert blob_key(quote(key, safe="/").encode()) == key
    assert blob_key(quote(key, safe="").encode()) == key
    assert blob_key(quote(quote(key, safe=""), safe="").encode()) == quote(key, safe="")


@given(st.binary(max_size=50))
def test_bytes_are_a_key_when_they_are_utf8(raw: bytes) -> None:
    encoded = quote(raw, safe="").encode()
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        with pytest.raises(BadRequest, match="not UTF-8"):
            blob_key(encoded)
    else:
        assert blob_key(encoded) == key


@given(st.binary(max_size=210))
def test_a_component_is_one_safe_part_of_a_path(value: bytes) -> None:
    allowed = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-"
    expected = 1 <= len(value) <= 200 and set(value) <= set(allowed) and value not in (b".", b"..")
    assert is_component(value) is expected


def test_a_newline_does_not_slip_in() -> None:
    assert not is_component(b"name\n")


def test_the_value_is_named() -> None:
    with pytest.raises(BadRequest, match="invalid run id `a/b`: use 1 to 200"):
        component(b"a%2Fb", "run id")


def test_excerpts_are_short_and_printable() -> None:
    assert excerpt(b"a\x00\xffb") == "a\\u0000\\xffb"
    assert excerpt("x" * 100) == "x" * 80 + "…"


@pytest.mark.parametrize(
    ("key", "expected"),
    [("lease.json", True), ("a/lease.json", True), ("xlease.json", False), ("lease.json/a", False)],
)
def test_leases(key: str, expected: bool) -> None:
    assert is_lease(key) is expected
