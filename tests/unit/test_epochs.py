"""The record of an epoch: written and read, refused where it does not hold together; keys."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import orjson
import pytest

from cellstore.epochs import (
    Base,
    EpochRecord,
    ForeignRecord,
    Piece,
    cell_prefix,
    decode,
    epoch_of,
    meta_key,
    meta_prefix,
    piece_key,
    state_key,
)
from cellstore.errors import CellBroken

DELTA = b"\x28\xb5\x2f\xfd changes"
BASE = Base("cells/c/state/base.db", "ab" * 32, 5000, 10)
SEGMENT = Piece(None, "cells/c/state/x.seg", 10, 30, 900, "cd" * 32, 2)
EARLIER = Piece(4, None, 30, 31, 70, "ef" * 32)
OWN = Piece(7, None, 31, 33, len(DELTA), hashlib.sha256(DELTA).hexdigest())

RECORD = EpochRecord(
    cell="c",
    epoch=7,
    owner="node-a",
    advertise="http://10.0.0.1:9700",
    lease_expires_at="2026-01-01T00:00:30Z",
    updated_at="2026-01-01T00:00:00Z",
    ttl=30.0,
    term=3,
    nonce="n",
    disk="d",
    boot="b",
    rev=33,
    base=BASE,
    pieces=(SEGMENT, EARLIER, OWN),
    delta=DELTA,
)


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, advertise=None, released=True),
        replace(RECORD, pieces=(SEGMENT, EARLIER), delta=None, rev=31),
        replace(RECORD, base=None, pieces=(), delta=None, rev=0),
        replace(RECORD, base=None, pieces=(replace(OWN, start=0),)),
        replace(RECORD, pieces=(), delta=None, rev=10),
    ],
)
def test_a_record_is_read_as_it_was_written(record: EpochRecord) -> None:
    assert decode(record.encode(), "c", 7) == record


def test_the_fields_are_those_of_the_format() -> None:
    fields = orjson.loads(RECORD.encode())
    assert fields["pieces"][0] == {
        "key": "cells/c/state/x.seg",
        "from": 10,
        "to": 30,
        "size": 900,
        "sha256": "cd" * 32,
        "uploads": 2,
    }
    assert fields["pieces"][2]["epoch"] == 7
    assert "key" not in fields["pieces"][2]
    assert fields["base"] == {
        "key": BASE.key,
        "sha256": BASE.sha256,
        "size": 5000,
        "rev": 10,
    }
    # A server that reads nothing else finds no object under this name.
    assert fields["snapshot"] not in RECORD.keys


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pieces": (EARLIER, OWN)}, "a piece from 30 to 31 follows 10"),
        ({"pieces": (SEGMENT, OWN)}, "a piece from 31 to 33 follows 30"),
        ({"pieces": (SEGMENT, replace(EARLIER, start=29), OWN)}, "from 29 to 31 follows 30"),
        ({"pieces": (replace(SEGMENT, end=10),)}, "from 10 to 10 follows 10"),
        ({"base": None}, "a piece from 10 to 30 follows 0"),
        ({"rev": 34}, "its pieces end at 33, it says 34"),
        ({"pieces": (), "delta": None}, "its pieces end at 10, it says 33"),
        ({"pieces": (replace(SEGMENT, key=None), EARLIER, OWN)}, "either an epoch or a key"),
        ({"delta": None}, "its delta is not its last piece"),
        ({"pieces": (SEGMENT, EARLIER), "rev": 31}, "its delta is not its last piece"),
        (
            {"pieces": (SEGMENT, replace(EARLIER, epoch=7), replace(OWN, epoch=5))},
            "its delta is not its last piece",
        ),
        (
            {"pieces": (SEGMENT, replace(EARLIER, epoch=7), OWN)},
            "its delta is not its last piece",
        ),
        ({"delta": b"other"}, "its delta is not what its last piece describes"),
    ],
)
def test_one_that_does_not_hold_together_is_neither_written_nor_read(
    changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = replace(RECORD, **changes)
    with pytest.raises(CellBroken, match=reason):
        bad.encode()
    with monkeypatch.context() as unchecked:
        unchecked.setattr(EpochRecord, "check", lambda _: None)
        data = bad.encode()
    with pytest.raises(CellBroken, match="epoch 7 of it"):
        decode(data, "c", 7)


def test_a_piece_in_two_places_is_neither_written_nor_read() -> None:
    with pytest.raises(CellBroken, match="either an epoch or a key"):
        replace(RECORD, pieces=(replace(SEGMENT, epoch=2), EARLIER, OWN)).encode()
    fields = orjson.loads(RECORD.encode())
    fields["pieces"][0]["epoch"] = 2
    with pytest.raises(CellBroken, match="either an epoch or a key"):
        decode(orjson.dumps(fields), "c", 7)


def test_a_record_of_another_server_is_told_apart() -> None:
    fields = {"cell": "c", "epoch": 7, "owner": "n", "snapshot": "cells/c/state/1.db"}
    with pytest.raises(ForeignRecord, match="cells/c: epoch 7"):
        decode(orjson.dumps(fields), "c", 7)


def without(name: str) -> bytes:
    fields = orjson.loads(RECORD.encode())
    del fields[name]
    return orjson.dumps(fields)


def having(name: str, value: object) -> bytes:
    return orjson.dumps(orjson.loads(RECORD.encode()) | {name: value})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        RECORD.encode()[:-1],
        b"[]",
        b"null",
        *map(without, ("rev", "base", "pieces", "term", "disk", "boot", "ttl", "released")),
        having("rev", "many"),
        having("rev", None),
        having("base", 1),
        having("base", {}),
        having("pieces", None),
        having("pieces", [{}]),
        having("pieces", [1]),
        having("delta", "not base64!"),
        having("delta", 1),
        having("delta", None),
        having("epoch", 8),
        having("cell", "d"),
    ],
)
def test_a_bad_record_is_broken(data: bytes) -> None:
    with pytest.raises(CellBroken, match="epoch 7 of it"):
        decode(data, "c", 7)


def test_the_keys_of_a_record_are_all_that_a_restore_needs() -> None:
    assert RECORD.keys == {BASE.key, SEGMENT.key, meta_key("c", 4), meta_key("c", 7)}
    assert replace(RECORD, base=None, pieces=(), delta=None, rev=0).keys == frozenset()


def test_keys() -> None:
    assert meta_key("c", 7) == "cells/c/meta/00000000000000000007.json"
    assert meta_key("c", 7).startswith(meta_prefix("c"))
    assert meta_prefix("c").startswith(cell_prefix("c"))
    assert meta_key("c", 9) < meta_key("c", 10) < meta_key("c", 10**19)
    assert piece_key("c", SEGMENT) == SEGMENT.key
    assert piece_key("c", EARLIER) == meta_key("c", 4)
    key = state_key("c", "seg", 33, "fresh", "cd" * 32)
    assert key == f"cells/c/state/00000000000000000033-fresh.{'cd' * 32}.seg"


@pytest.mark.parametrize(
    ("key", "epoch"),
    [
        (meta_key("c", 7), 7),
        (meta_key("c", 10**19), 10**19),
        ("cells/c/meta/7.json", None),
        ("cells/c/meta/00000000000000000007.tmp", None),
        ("cells/c/meta/0000000000000000000x.json", None),
        ("cells/c/meta/٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧.json", None),
        ("cells/c/state/00000000000000000007.json", None),
        ("cells/c/meta/", None),
        ("", None),
    ],
)
def test_the_epoch_of_a_key(key: str, epoch: int | None) -> None:
    assert epoch_of(key) == epoch
