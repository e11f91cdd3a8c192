"""Journal records: what a client may append, and how its text is checked.

A journal is read back by its client in one piece with serde_json, so one record that serde_json
refuses makes the whole run unreadable. This module therefore refuses everything that serde_json
refuses: NaN and infinities, numbers past a double, lone surrogates, bad UTF-8, a byte-order mark,
and nesting deeper than its recursion limit. Accepted records keep the text that was sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import msgspec
import orjson

from cellstore.errors import BadRequest
from cellstore.names import excerpt

MAX_SEQ = 2**63 - 1

# serde_json gives up at 128 nested containers, and the journal's own array is one of them.
MAX_DEPTH = 126

# One call of a parser holds the interpreter lock: larger texts are checked piece by piece.
PIECE = 256 * 1024

T = TypeVar("T")

_WHITESPACE = b" \t\r\n"


class Record(NamedTuple):
    """One journal record: its sequence number and its JSON text as it was sent."""

    seq: int
    text: bytes


class _Key:
    """A member's name that equals only itself, so that a decoded object keeps repeated members."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


_array = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=lambda kind, name: kind(name))


def parse_record(body: bytes) -> Record:
    """Check one record. Raises BadRequest that says what is wrong with it."""
    try:
        return _record(body.strip(_WHITESPACE))
    except ValueError as fault:
        raise BadRequest(f"invalid record: {fault}") from None


def parse_journal(body: bytes) -> list[Record]:
    """Check a whole journal, a JSON array of records. Raises BadRequest naming the bad one."""
    records: list[Record] = []
    seen: dict[int, int] = {}
    index = -1
    try:
        for index, item in enumerate(_split_array(body)):
            record = _record(item)
            first = seen.setdefault(record.seq, index)
            if first != index:
                raise ValueError(
                    f"`seq` {record.seq} stands at {first} too; send each seq once in a journal"
                )
            records.append(record)
    except ValueError as fault:
        where = f" at position {index}" if index >= 0 else ""
        raise BadRequest(f"invalid journal{where}: {fault}") from None
    return records


def check_entry(body: bytes) -> bytes:
    """Check a registry entry, which may be any JSON value. Returns its text; raises BadRequest."""
    text = body.strip(_WHITESPACE)
    try:
        _check(text, MAX_DEPTH)
    except ValueError as fault:
        raise BadRequest(f"invalid registry entry: {fault}") from None
    return text


def _record(text: bytes) -> Record:
    if not text.startswith(b"{"):
        if text:
            _check(text, MAX_DEPTH)
        raise ValueError(f"a record is a JSON object, not `{excerpt(text)}`")
    if len(text) > PIECE:
        return _large_record(text)
    value = orjson.loads(text)
    if _deeper(value, text, MAX_DEPTH):
        raise ValueError(_too_deep())
    if text.count(b'"seq"') > 1 or "seq" not in value or not value["seq"]:
        return _odd_record(text)
    return Record(_seq(value["seq"]), text)


def _large_record(text: bytes) -> Record:
    for member in _split_object(text).values():
        _check(bytes(member), MAX_DEPTH - 1)
    return _odd_record(text)


def _odd_record(text: bytes) -> Record:
    """A record whose `seq` needs a second look: repeated, missing, or spelled like -0 or 1e0.

    Of a repeated `seq` the last counts, and only it is kept: typed readers refuse the rest.
    """
    members = _split_object(text)
    seqs = [bytes(raw) for key, raw in members.items() if key.name == "seq"]
    if not seqs:
        raise ValueError("`seq` is missing; give each record an unsigned integer `seq`")
    last = seqs[-1]
    if last == b"-0":
        raise ValueError(_bad_seq(b"-0"))
    if len(seqs) > 1:
        kept = [(key.name, raw) for key, raw in members.items() if key.name != "seq"]
        parts = [b'"seq":' + last] + [orjson.dumps(name) + b":" + bytes(raw) for name, raw in kept]
        text = b"{" + b",".join(parts) + b"}"
    return Record(_seq(orjson.loads(last)), text)


def _seq(value: object) -> int:
    # A bool is an int to Python, but not to JSON.
    if type(value) is int and 0 <= value <= MAX_SEQ:
        return value
    raise ValueError(_bad_seq(orjson.dumps(value)))


def _bad_seq(spelling: bytes) -> str:
    return f"`seq` is {excerpt(spelling)}; it must be an unsigned integer up to {MAX_SEQ}"


def _too_deep() -> str:
    return f"it is nested more than {MAX_DEPTH} deep, which its readers refuse; flatten it"


def _check(text: bytes, depth: int) -> None:
    """Raise ValueError unless `text` is one JSON value that serde_json reads."""
    if len(text) <= PIECE or text[:1] not in (b"[", b"{"):
        if _deeper(orjson.loads(text), text, depth):
            raise ValueError(_too_deep())
        return
    if depth == 0:
        raise ValueError(_too_deep())
    parts = _split_array(text) if text[:1] == b"[" else map(bytes, _split_object(text).values())
    for part in parts:
        _check(part, depth - 1)


def _split_array(text: bytes) -> Iterator[bytes]:
    items: list[msgspec.Raw] = _split(_array, text)
    return map(bytes, items)


def _split_object(text: bytes) -> dict[_Key, msgspec.Raw]:
    return _split(_object, text)


def _split(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    try:
        return decoder.decode(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise ValueError(str(fault)) from None


def _deeper(value: object, text: bytes, limit: int) -> bool:
    """Whether `value`, parsed from `text`, nests more than `limit` containers."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        if depth > limit:
            return True
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
    return False
