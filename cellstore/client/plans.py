"""The operations of a run store, each a plan over requests: see `core.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from cellstore.client.core import Answer, Call, Pause, Plan, Repeats, Rules, exchange
from cellstore.client.errors import BadRequest, NotFound, PreconditionFailed, StoreBroken
from cellstore.conditions import digest
from cellstore.names import excerpt, is_component

# A record, or its JSON text as it is to be kept.
Record: TypeAlias = Mapping[str, Any] | bytes | str

_JSON = {"content-type": "application/json"}
_BYTES = {"content-type": "application/octet-stream"}
_ABSENT = frozenset({404})


class Blob(NamedTuple):
    """A blob's bytes and its tag, the lowercase hex SHA-256 of them."""

    data: bytes
    etag: str


# Journals


def append(rules: Rules, run: str, record: Record, *, repeat: bool) -> Plan[None]:
    """Append one record; see the clients for `repeat`."""
    yield from exchange(
        rules,
        Call(
            f"append to run `{excerpt(run)}`",
            "POST",
            _run(run, "records"),
            _text(record, "record"),
            _JSON,
            Repeats.ALWAYS if repeat else Repeats.ANSWERED,
        ),
    )


def replace(rules: Rules, run: str, records: Iterable[Record]) -> Plan[None]:
    """Replace the whole journal."""
    body = b"[%b]" % b",".join(_text(record, "record") for record in records)
    what = f"replace the journal of run `{excerpt(run)}`"
    path = _run(run, "records")
    yield from exchange(rules, Call(what, "PUT", path, body, _JSON, Repeats.ANSWERED))


def journal(rules: Rules, run: str, *, streams: bool = False) -> Plan[Answer | None]:
    """Read the journal's text. None when the run is unknown or its journal is empty."""
    what = f"read the journal of run `{excerpt(run)}`"
    call = Call(what, "GET", _run(run, "records"), expects=_ABSENT, streams=streams)
    answer = yield from exchange(rules, call)
    if answer.status != 404:
        return answer
    # Any other 404 is that of a server which does not know the path.
    if answer.body.strip() != b"no journal":
        raise NotFound(f"{what}: {rules.base.url} is no run store: {excerpt(answer.body, 200)}")
    return None


def records(rules: Rules, run: str) -> Plan[list[Any]]:
    """Read the journal."""
    answer = yield from journal(rules, run)
    return [] if answer is None else _parsed(f"the journal of run `{excerpt(run)}`", answer, list)


def runs(rules: Rules) -> Plan[list[str]]:
    """List the runs."""
    answer = yield from exchange(rules, Call("list the runs", "GET", "/runs"))
    return _parsed("the list of runs", answer, list)


# Blobs


def blobs(rules: Rules, run: str) -> Plan[list[str]]:
    """List the keys of a run's blobs."""
    what = f"list the blobs of run `{excerpt(run)}`"
    answer = yield from exchange(rules, Call(what, "GET", _run(run, "blobs")))
    return _parsed("the list of blobs", answer, list)


def get_blob(rules: Rules, run: str, key: str) -> Plan[Blob | None]:
    """Read a blob, None when there is none."""
    call = Call(_blob("read", run, key), "GET", _run(run, "blobs", key), expects=_ABSENT)
    answer = yield from exchange(rules, call)
    return None if answer.status == 404 else Blob(answer.body, digest(answer.body))


def put_blob(
    rules: Rules,
    run: str,
    key: str,
    data: bytes,
    *,
    if_match: str | None,
    if_none_match: Literal["*"] | None,
) -> Plan[str]:
    """Write a blob; returns its tag."""
    conditions = _conditions(if_match, if_none_match)
    yield from exchange(
        rules,
        Call(
            _blob("write", run, key),
            "PUT",
            _run(run, "blobs", key),
            data,
            _BYTES | conditions,
            Repeats.UNSENT if conditions else Repeats.ANSWERED,
        ),
    )
    return digest(data)


def delete_blob(rules: Rules, run: str, key: str, *, if_match: str | None) -> Plan[None]:
    """Delete a blob, if there is one."""
    conditions = _conditions(if_match, None)
    yield from exchange(
        rules,
        Call(
            _blob("delete", run, key),
            "DELETE",
            _run(run, "blobs", key),
            headers=conditions,
            repeats=Repeats.UNSENT if conditions else Repeats.ANSWERED,
        ),
    )


def compare_and_swap(
    rules: Rules, run: str, key: str, old: str | None, data: bytes
) -> Plan[str]:
    """Write a blob if its tag is still `old` (None: if there is none); returns the new tag."""
    absent: Literal["*"] | None = "*" if old is None else None
    return put_blob(rules, run, key, data, if_match=old, if_none_match=absent)


def update(
    rules: Rules, run: str, key: str, change: Callable[[bytes | None], bytes]
) -> Plan[str]:
    """Write what `change` makes of the blob, again from what is there if another was quicker."""
    end = rules.now() + rules.deadline
    while True:
        blob = yield from get_blob(rules, run, key)
        data = change(None if blob is None else blob.data)
        if blob is not None and data == blob.data:
            return blob.etag
        try:
            return (yield from compare_and_swap(rules, run, key, blob and blob.etag, data))
        except PreconditionFailed:
            if rules.now() >= end:
                raise
        yield Pause(0.05 * rules.jitter())


# Nodes and the registry


def status(rules: Rules, *, fleet: bool) -> Plan[dict[str, Any]]:
    """Read what a node says of itself, or of its fleet."""
    path = "/status?fleet=true" if fleet else "/status"
    answer = yield from exchange(rules, Call("read the status", "GET", path))
    return _parsed("the status", answer, dict)


def registry(rules: Rules) -> Plan[list[Any]]:
    """Read all registry entries."""
    answer = yield from exchange(rules, Call("read the registry", "GET", "/registry"))
    return _parsed("the registry", answer, list)


def get_entry(rules: Rules, name: str) -> Plan[Any]:
    """Read a registry entry, None when there is none."""
    what = f"read registry entry `{excerpt(name)}`"
    answer = yield from exchange(rules, Call(what, "GET", _entry(name), expects=_ABSENT))
    return None if answer.status == 404 else _parsed(what, answer, object)


def put_entry(rules: Rules, name: str, entry: object) -> Plan[None]:
    """Write a registry entry."""
    what, body = f"write registry entry `{excerpt(name)}`", _text(entry, "registry entry")
    yield from exchange(rules, Call(what, "PUT", _entry(name), body, _JSON, Repeats.ANSWERED))


def request(
    rules: Rules, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> Plan[Answer]:
    """Send any other request. Only reads are repeated, unless it was never sent."""
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise BadRequest(f"invalid path `{excerpt(path)}`: start it with / and percent-encode it")
    reads = method in ("GET", "HEAD")
    repeats = Repeats.ALWAYS if reads else Repeats.UNSENT
    what = f"{method} {excerpt(path)}"
    return (yield from exchange(rules, Call(what, method, path, body, headers, repeats)))


def parse_record(run: str, text: bytes) -> Any:
    """Parse one record of a journal. Raises StoreBroken."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise _not_json(f"the journal of run `{excerpt(run)}`", fault) from None


def _not_json(what: str, fault: Exception) -> StoreBroken:
    return StoreBroken(f"{what} is not the JSON of a run store: {fault}; look at what is stored")


def _parsed(what: str, answer: Answer, kind: type[Any]) -> Any:
    try:
        value = json.loads(answer.body)
        if not isinstance(value, kind):
            raise ValueError(f"it is no {kind.__name__}")
    except (ValueError, RecursionError) as fault:
        raise _not_json(what, fault) from None
    return value


def _text(value: object, what: str) -> bytes:
    """The JSON text of a value; texts are sent as they are."""
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str) and what == "record":
            return value.encode()
        plain = dict(value) if isinstance(value, Mapping) else value
        return json.dumps(
            plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    except (ValueError, RecursionError) as fault:
        # Its text may be that of the record, of which messages hold nothing.
        why = "NaN, an infinity, a lone surrogate, a cycle, or nesting without end"
        raise BadRequest(f"invalid {what}: it is not JSON: {why}") from fault


def _run(run: str, *rest: str) -> str:
    return "/".join(["/runs", _component(run, "run id"), *map(_key, rest)])


def _entry(name: str) -> str:
    return f"/registry/{_component(name, 'registry name')}"


def _component(value: str, what: str) -> str:
    if not is_component(value.encode("utf-8", "surrogatepass")):
        raise BadRequest(
            f"invalid {what} `{excerpt(value)}`: use 1 to 200 of A-Z a-z 0-9 . _ @ - "
            "and neither `.` nor `..`"
        )
    return value


def _key(key: str) -> str:
    if not key:
        raise BadRequest("invalid blob key: it is empty")
    try:
        segments = quote(key).split("/")
    except UnicodeEncodeError:
        raise BadRequest(f"invalid blob key `{excerpt(key)}`: it is not UTF-8") from None
    # Bare dots would be taken for a way up, and the path be shortened.
    return "/".join(
        segment.replace(".", "%2E") if segment in (".", "..") else segment for segment in segments
    )


def _blob(verb: str, run: str, key: str) -> str:
    return f"{verb} blob `{excerpt(key)}` of run `{excerpt(run)}`"


def _conditions(if_match: str | None, if_none_match: Literal["*"] | None) -> dict[str, str]:
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
