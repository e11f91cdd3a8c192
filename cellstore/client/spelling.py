"""How requests are spelled: paths, bodies and conditions. What cannot be sent is a BadRequest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from cellstore.client.errors import BadRequest
from cellstore.names import MAX_BLOB_KEY, excerpt, is_component

# A record, or its JSON text as it is to be kept.
Record: TypeAlias = Mapping[str, Any] | bytes | str

# What httpx sends as it is.
_METHOD = re.compile("[A-Z]+")
_NAME = re.compile("[A-Za-z0-9-]+")
_PATH = re.compile(r"/[!$&'()*+,./0-9:;=?@A-Z_a-z~%-]{0,16384}")


def record_text(record: Record) -> bytes:
    """A record as JSON; a text is taken as it is."""
    if isinstance(record, Mapping):
        return _json(dict(record), "record")
    if isinstance(record, bytes):
        return record
    try:
        return record.encode()
    except UnicodeEncodeError:
        raise BadRequest("invalid record: it holds a lone surrogate, which is not UTF-8") from None


def entry_text(entry: object) -> bytes:
    """A registry entry as JSON; bytes are taken as they are."""
    return entry if isinstance(entry, bytes) else _json(entry, "registry entry")


def _json(value: object, what: str) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (ValueError, RecursionError) as fault:
        # What the fault says of it may be a part of it, of which messages hold nothing.
        why = "NaN, an infinity, a lone surrogate, a cycle, or nesting without end"
        raise BadRequest(f"invalid {what}: it cannot be JSON, for it holds {why}") from fault


def run_path(run: str, *rest: str) -> str:
    """The path of a run, or of what is below it."""
    return "/".join(["/runs", _component(run, "run id"), *map(_key, rest)])


def entry_path(name: str) -> str:
    """The path of a registry entry."""
    return f"/registry/{_component(name, 'registry name')}"


def _component(value: str, what: str) -> str:
    if not is_component(value.encode("utf-8", "surrogatepass")):
        raise BadRequest(
            f"invalid {what} `{excerpt(value)}`: use 1 to 200 of A-Z a-z 0-9 . _ @ - "
            "and neither `.` nor `..`"
        )
    return value


def _key(key: str) -> str:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise BadRequest(f"invalid blob key `{excerpt(key)}`: it is not UTF-8") from None
    if not 0 < size <= MAX_BLOB_KEY:
        raise BadRequest(
            f"invalid blob key `{excerpt(key)}`: it has {size} bytes, use 1 to {MAX_BLOB_KEY}"
        )
    segments = quote(key).split("/")
    # Bare dots would be taken for a way up, and the path be shortened.
    return "/".join(
        segment.replace(".", "%2E") if segment in (".", "..") else segment for segment in segments
    )


def conditions_of(if_match: str | None, if_none_match: Literal["*"] | None) -> dict[str, str]:
    """The headers of a conditional write."""
    conditions: dict[str, str] = {}
    if if_none_match is not None:
        conditions["if-none-match"] = if_none_match
    if if_match is not None:
        if not if_match.isalnum() or not if_match.isascii():
            raise BadRequest(
                f"invalid tag `{excerpt(if_match)}`: give the hex SHA-256, without quotes"
            )
        conditions["if-match"] = f'"{if_match}"'
    return conditions


def check_request(method: str, path: str, headers: Mapping[str, str]) -> None:
    """Raise BadRequest unless httpx sends these as they are."""
    dots = {".", ".."} & set(path.split("/"))
    if dots or not _PATH.fullmatch(path) or not _METHOD.fullmatch(method):
        raise BadRequest(
            f"invalid request `{excerpt(method)} {excerpt(path)}`: the path starts with / and is "
            "percent-encoded"
        )
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise BadRequest(f"invalid header `{excerpt(name)}`: it holds what no header can")
