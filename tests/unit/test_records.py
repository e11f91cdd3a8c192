"""What is accepted as a record, against an oracle of its own."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellstore import records
from cellstore.errors import BadRequest
from cellstore.records import MAX_DEPTH, Record, check_entry, parse_journal, parse_record

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(seq=st.integers(0, 2**63 - 1), members=st.dictionaries(st.text(), VALUES), ascii_only=...)
def test_a_record_keeps_its_text(seq: int, members: dict[str, Any], ascii_only: bool) -> None:
    members.pop("seq", None)
    text = json.dumps(members | {"seq": seq}, ensure_ascii=ascii_only).encode()
    assert parse_record(b"\n " + text + b"\t") == Record(seq, text)


@given(value=VALUES, piece=st.integers(1, 40))
def test_long_records_are_checked_alike(value: Any, piece: int) -> None:
    text = json.dumps({"seq": 3, "value": value}).encode()
    whole = records.PIECE
    records.PIECE = piece
    try:
        assert parse_record(text) == Record(3, text)
        assert check_entry(text) == text
        with pytest.raises(BadRequest):
            parse_record(text[:-1] + b',"bad":[[1e999]]}')
        with pytest.raises(BadRequest):
            parse_record(b'{"bad":1e999,"bad":1,' + text[1:])
    finally:
        records.PIECE = whole


@given(
    value=VALUES,
    piece=st.integers(1, 30),
    indent=st.sampled_from([None, 0, 7]),
    where=st.integers(0, 200),
    insert=st.sampled_from(["", ",", ", ,", "]", "}", "[", '"', "\\", " " * 40, ",      ,", "1"]),
    remove=st.integers(0, 2),
)
def test_slices_accept_what_the_whole_is_accepted_for(
    value: Any, piece: int, indent: int | None, where: int, insert: str, remove: int
) -> None:
    text = json.dumps(value, indent=indent)
    where %= len(text) + 1
    damaged = (text[:where] + insert + text[where + remove :]).strip(" \n").encode()
    try:
        orjson.loads(damaged)
    except ValueError:
        fine = False
    else:
        fine = True
    whole = records.PIECE
    records.PIECE = piece
    try:
        if fine:
            assert check_entry(damaged) == damaged
        else:
            with pytest.raises(BadRequest):
                check_entry(damaged)
    finally:
        records.PIECE = whole


def test_a_long_gap_between_commas_is_no_value() -> None:
    gap = " " * 140_000
    text = f'["{"x" * 140_000}",{gap},{"1," * 200_000}1]'
    with pytest.raises(BadRequest):
        check_entry(text.encode())
    filled = text.replace(f"{gap},", f"{gap}1,").encode()
    assert check_entry(filled) == filled


def nested(depth: int, opening: str, closing: str) -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"k":', "}]")])
@pytest.mark.parametrize("piece", [16, records.PIECE])
def test_the_limit_of_depth_is_exact(
    opening: str, closing: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PIECE", piece)
    each = opening.count("[") + opening.count("{")
    deepest = (MAX_DEPTH - 1) // each
    for depth, fine in [(deepest, True), (deepest + 1, (deepest + 1) * each < MAX_DEPTH)]:
        text = b'{"seq":1,"a":' + nested(depth, opening, closing) + b"}"
        if fine:
            assert parse_record(text).text == text
        else:
            with pytest.raises(BadRequest, match="nested more than"):
                parse_record(text)


def test_brackets_in_strings_are_not_depth() -> None:
    text = json.dumps({"seq": 1, "a": "[{" * 500}).encode()
    assert parse_record(text).text == text


@pytest.mark.parametrize(
    ("text", "seq", "kept"),
    [
        (b'{"seq":1,"seq":2}', 2, b'{"seq":2}'),
        (b'{"a":1.50,"seq":9,"b":[ 1 ],"seq":0}', 0, b'{"a":1.50,"seq":0,"b":[ 1 ]}'),
        (b'{"seq":1,"\\u0073eq":2}', 2, b'{"seq":2}'),
        (b'{"seq":1,"args":1,"\\u0061rgs":[2.50]}', 1, b'{"seq":1,"args":[2.50]}'),
        (b'{"seq":0}', 0, b'{"seq":0}'),
        (b'{"seq":3,"a":{"seq":"x"}}', 3, b'{"seq":3,"a":{"seq":"x"}}'),
        (b'{"\\u0073eq":4}', 4, b'{"\\u0073eq":4}'),
    ],
)
def test_odd_seqs(text: bytes, seq: int, kept: bytes) -> None:
    assert parse_record(text) == Record(seq, kept)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"seq":1.0}', "`seq` is 1.0"),
        (b'{"seq":-0}', "`seq` is -0"),
        (b'{"seq":"1"}', '`seq` is "1"'),
        (b'{"seq":9223372036854775808}', "9223372036854775807"),
        (b"{}", "`seq` is missing"),
        (b"[1,2]", "a record is a JSON object, not `[1,2]`"),
        (b'{"seq":1,"a":NaN}', "line 1 column"),
    ],
)
def test_messages_name_the_value_and_the_rule(text: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_record(text)
    assert message in caught.value.message


def test_a_journal_names_the_bad_record() -> None:
    with pytest.raises(BadRequest, match="invalid journal at position 1: `seq` is missing"):
        parse_journal(b'[{"seq":1},{}]')
    with pytest.raises(BadRequest, match="at position 2: `seq` 1 stands at 0 too"):
        parse_journal(b'[{"seq":1},{"seq":2},{"seq":1}]')
    with pytest.raises(BadRequest, match="invalid journal: "):
        parse_journal(b'{"seq":1}')


def test_a_journal_keeps_order_and_texts() -> None:
    assert parse_journal(b' [ {"seq":2} , {"seq":1, "a": 1.0} ] ') == [
        Record(2, b'{"seq":2}'),
        Record(1, b'{"seq":1, "a": 1.0}'),
    ]
    assert parse_journal(b"[]") == []


@given(st.floats())
def test_only_finite_numbers_pass(number: float) -> None:
    text = f'{{"seq":1,"a":{json.dumps(number)}}}'.encode()
    if math.isfinite(number):
        assert parse_record(text).text == text
    else:
        with pytest.raises(BadRequest):
            parse_record(text)
