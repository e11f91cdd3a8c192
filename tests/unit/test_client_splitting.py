"""A journal cut into records, wherever the pieces of it end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellstore.client.splitting import Splitter


def split(pieces: Iterable[bytes]) -> list[bytes]:
    splitter = Splitter()
    found = [text for piece in pieces for text in splitter.feed(piece)]
    splitter.end()
    return found


def bytewise(text: bytes) -> list[bytes]:
    return [text[at : at + 1] for at in range(len(text))]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        (b"[]", []),
        (b" \r\n[ \t] \n", []),
        (b'[{"a":1},{"b":[2,3]}]', [b'{"a":1}', b'{"b":[2,3]}']),
        (b"[1, 2 ,3 ]", [b"1", b"2", b"3"]),
        (b'["a,]}[{","\\"","\\\\",""]', [b'"a,]}[{"', b'"\\""', b'"\\\\"', b'""']),
        (b'[{"k\\\\":"\\\\\\"]"},[[]],{}]', [b'{"k\\\\":"\\\\\\"]"}', b"[[]]", b"{}"]),
        ('["äöü€😀"]'.encode(), ['"äöü€😀"'.encode()]),
    ],
)
def test_elements(text: bytes, elements: list[bytes]) -> None:
    assert split([text]) == split(bytewise(text)) == elements


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"[",
        b"[1",
        b"[1,",
        b'["',
        b'["]',
        b'["\\"]',
        b"[{]",
        b"{}",
        b"null",
        b"[]]",
        b"[][]",
        b"[] x",
        b"x []",
        b"[,]",
        b"[1,]",
        b"[,1]",
        b"[1,,2]",
        b"[1}",
        b"no journal",
    ],
)
def test_what_is_no_array(text: bytes) -> None:
    for pieces in ([text], bytewise(text)):
        with pytest.raises(ValueError, match=r"array|element|brackets"):
            split(pieces)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.lists(values, max_size=5),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.lists(st.integers(0, 400)),
)
def test_any_array_in_any_pieces(
    array: list[object], ascii_only: bool, indent: int | None, cuts: list[int]
) -> None:
    text = json.dumps(array, ensure_ascii=ascii_only, indent=indent).encode()
    bounds = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    assert [json.loads(element) for element in split(pieces)] == array


def test_it_holds_one_element_at_most() -> None:
    splitter = Splitter()
    record = b'{"seq":1,"result":"' + b"x" * 10_000 + b'"}'
    list(splitter.feed(b"["))
    for _ in range(200):
        for at in range(0, len(record), 4096):
            list(splitter.feed(record[at : at + 4096]))
            assert len(splitter._element) <= len(record)
        assert list(splitter.feed(b",")) == [record]
