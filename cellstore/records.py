"""Journal records: what a client may append, and how its text is checked.

A journal is read back by its client in one piece with serde_json, so one record that serde_json
refuses makes the whole run unreadable. This module therefore refuses everything that serde_json
refuses: NaN and infinities, numbers past a double, lone surrogates, bad UTF-8, a byte-order mark,
and nesting deeper than its recursion limit. Accepted records keep the text that was sent.
"""

from __future__ import annotations

import re
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
_DIGITS = re.compile(rb"0|[1-9][0-9]*")

# How many commas are tried, of each kind, to cut a long text at.
_TRIES = 8


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
        items: list[msgspec.Raw] = _split(_array, body)
        for index, item in enumerate(items):
            record = _record(bytes(item))
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
        raise ValueError(f"a record is a JSON object, not `{excerpt(text)}`")
    _check(text, MAX_DEPTH)
    members = _split(_object, text)
    values = {member.name: value for member, value in members.items()}
    if len(values) != len(members):
        # Typed readers refuse a repeated member, so only the last of each is kept.
        pairs = [orjson.dumps(name) + b":" + bytes(value) for name, value in values.items()]
        text = b"{" + b",".join(pairs) + b"}"
    if "seq" not in values:
        raise ValueError("`seq` is missing; give each record an unsigned integer `seq`")
    return Record(_seq(bytes(values["seq"])), text)


def _seq(spelling: bytes) -> int:
    if _DIGITS.fullmatch(spelling) and len(spelling) < 20 and (seq := int(spelling)) <= MAX_SEQ:
        return seq
    raise ValueError(
        f"`seq` is {excerpt(spelling)}; it must be an unsigned integer up to {MAX_SEQ}"
    )


def _missing(before: str) -> str:
    return f"a value is missing before a `{before}`; it is not JSON"


def _too_deep() -> str:
    return f"it is nested more than {MAX_DEPTH} deep, which its readers refuse; flatten it"


def _check(text: bytes, depth: int) -> None:
    """Raise ValueError unless `text` is one JSON value that serde_json reads.

    `depth` is how many containers it may nest. A long one is checked in slices of its members,
    and only where none can be cut, because the members are long themselves, one member at a time.
    """
    opening, closing = text[:1], text[-1:]
    if len(text) <= PIECE or opening + closing not in (b"[]", b"{}"):
        if _deeper(orjson.loads(text), text, depth):
            raise ValueError(_too_deep())
        return None
    if depth == 0:
        raise ValueError(_too_deep())
    start, end = 1, len(text) - 1
    while end - start > PIECE:
        cut = _cut(text, start, end, opening, closing, depth)
        if cut is None:
            return _check_members(opening + text[start:end] + closing, depth)
        start = cut + 1
    last = text[start:end]
    if start > 1 and not last.strip(_WHITESPACE):
        raise ValueError(_missing(closing.decode()))
    piece = opening + last + closing
    if _deeper(orjson.loads(piece), piece, depth):
        raise ValueError(_too_deep())
    return None


def _cut(
    text: bytes, start: int, end: int, opening: bytes, closing: bytes, depth: int
) -> int | None:
    """Find a comma between two members, a slice on from `start`, and check what lies before it.

    If what lies before a comma is whole members, the comma does stand between two.
    """
    for separator in (b"},", b"],", b'",', b","):
        at = start + PIECE // 2
        for _ in range(_TRIES):
            at = text.find(separator, at + 1, min(end, start + PIECE))
            if at < 0:
                break
            comma = at + len(separator) - 1
            piece = opening + text[start:comma] + closing
            try:
                value = orjson.loads(piece)
            except ValueError:
                continue
            if not value:
                raise ValueError(_missing(","))
            if _deeper(value, piece, depth):
                raise ValueError(_too_deep())
            return comma
    return None


def _check_members(text: bytes, depth: int) -> None:
    members = _split(_array, text) if text[:1] == b"[" else _split(_object, text).values()
    for member in members:
        _check(bytes(member), depth - 1)


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
