"""What clients may call things: run ids, registry names, blob keys.

Ids and names become file names and, later, bucket keys, so they are held to one safe path
component. Blob keys never become file names: they only live inside a cell's database.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from cellstore.errors import BadRequest

MAX_COMPONENT = 200
MAX_BLOB_KEY = 4096

_COMPONENT = re.compile(rb"[A-Za-z0-9._@-]{1,200}")


def is_component(value: bytes) -> bool:
    """Whether `value` may name a run, a registry entry or a node."""
    return _COMPONENT.fullmatch(value) is not None and value not in (b".", b"..")


def component(segment: bytes, what: str) -> str:
    """Decode one raw path segment into a run id or registry name.

    Raises BadRequest naming the value when it is not 1 to 200 of `A-Z a-z 0-9 . _ @ -`.
    """
    value = unquote_to_bytes(segment) if b"%" in segment else segment
    if is_component(value):
        return value.decode("ascii")
    raise BadRequest(
        f"invalid {what} `{excerpt(value)}`: use 1 to {MAX_COMPONENT} of A-Z a-z 0-9 . _ @ - "
        "and neither `.` nor `..`"
    )


def blob_key(raw: bytes) -> str:
    """Decode the raw remainder of a blob path, percent-decoding exactly once.

    Raises BadRequest when the decoded bytes are not UTF-8 or are longer than 4 KB.
    """
    value = unquote_to_bytes(raw) if b"%" in raw else raw
    if len(value) > MAX_BLOB_KEY:
        raise BadRequest(
            f"invalid blob key `{excerpt(value)}`: it has {len(value)} bytes, "
            f"shorten it to at most {MAX_BLOB_KEY}"
        )
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BadRequest(
            f"invalid blob key `{excerpt(value)}`: byte {fault.start} is not UTF-8; "
            "percent-encode the UTF-8 bytes of the key"
        ) from None


def is_lease(key: str) -> bool:
    """Whether a blob key is a run's lease, whose errors clients read as verdicts on ownership."""
    return key.rpartition("/")[2] == "lease.json"


def excerpt(value: object, limit: int = 80) -> str:
    """A short printable form of a value, for messages that name it."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "…"
