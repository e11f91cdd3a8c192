"""The operations of a run store, each a plan over requests: see `core.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from cellstore.client.core import Answer, Call, Pause, Plan, Repeats, Rules, T, exchange
from cellstore.client.errors import NotFound, PreconditionFailed, StoreBroken
from cellstore.client.spelling import (
    Record,
    check_request,
    conditions_of,
    entry_path,
    entry_text,
    record_text,
    run_path,
)
from cellstore.conditions import digest
from cellstore.names import excerpt

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
            run_path(run, "records"),
            record_text(record),
            _JSON,
            Repeats.ALWAYS if repeat else Repeats.ANSWERED,
        ),
    )


def replace(rules: Rules, run: str, records: Iterable[Record]) -> Plan[None]:
    """Replace the whole journal."""
    body = b"[%b]" % b",".join(record_text(record) for record in records)
    what = f"replace the journal of run `{excerpt(run)}`"
    path = run_path(run, "records")
    yield from exchange(rules, Call(what, "PUT", path, body, _JSON, Repeats.ANSWERED))


def journal(rules: Rules, run: str, *, streams: bool = False) -> Plan[Answer | None]:
    """Read the journal's text. None when the run is unknown or its journal is empty."""
    what = f"read the journal of run `{excerpt(run)}`"
    call = Call(what, "GET", run_path(run, "records"), expects=_ABSENT, streams=streams)
    answer = yield from exchange(rules, call)
    if answer.status != 404:
        return answer
    # Any other 404 is that of a server which does not know the path.
    if answer.body.strip() != b"no journal":
        raise NotFound(f"{what}: {rules.base.url} is no run store: {rules.quoted(answer.body)}")
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
    answer = yield from exchange(rules, Call(what, "GET", run_path(run, "blobs")))
    return _parsed("the list of blobs", answer, list)


def get_blob(rules: Rules, run: str, key: str) -> Plan[Blob | None]:
    """Read a blob, None when there is none."""
    call = Call(_blob("read", run, key), "GET", run_path(run, "blobs", key), expects=_ABSENT)
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
    conditions = conditions_of(if_match, if_none_match)
    yield from exchange(
        rules,
        Call(
            _blob("write", run, key),
            "PUT",
            run_path(run, "blobs", key),
            data,
            _BYTES | conditions,
            Repeats.UNSENT if conditions else Repeats.ANSWERED,
        ),
    )
    return digest(data)


def delete_blob(rules: Rules, run: str, key: str, *, if_match: str | None) -> Plan[None]:
    """Delete a blob, if there is one."""
    conditions = conditions_of(if_match, None)
    yield from exchange(
        rules,
        Call(
            _blob("delete", run, key),
            "DELETE",
            run_path(run, "blobs", key),
            headers=conditions,
            repeats=Repeats.UNSENT if conditions else Repeats.ANSWERED,
        ),
    )


def compare_and_swap(rules: Rules, run: str, key: str, old: str | None, data: bytes) -> Plan[str]:
    """Write a blob if its tag is still `old` (None: if there is none); returns the new tag."""
    absent: Literal["*"] | None = "*" if old is None else None
    return put_blob(rules, run, key, data, if_match=old, if_none_match=absent)


def update(rules: Rules, run: str, key: str, change: Callable[[bytes | None], bytes]) -> Plan[str]:
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
    entry = f"registry entry `{excerpt(name)}`"
    call = Call(f"read {entry}", "GET", entry_path(name), expects=_ABSENT)
    answer = yield from exchange(rules, call)
    return None if answer.status == 404 else _parsed(entry, answer, object)


def put_entry(rules: Rules, name: str, entry: object) -> Plan[None]:
    """Write a registry entry."""
    what, body = f"write registry entry `{excerpt(name)}`", entry_text(entry)
    yield from exchange(rules, Call(what, "PUT", entry_path(name), body, _JSON, Repeats.ANSWERED))


def request(
    rules: Rules, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> Plan[Answer]:
    """Send any other request. Only reads are repeated, unless it was never sent."""
    check_request(method, path, headers)
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


def broke_off(run: str, why: str) -> str:
    """The message for a journal that ended early."""
    return f"the journal of run `{excerpt(run)}` breaks off: {why}; read it again"


def _not_json(what: str, fault: Exception) -> StoreBroken:
    return StoreBroken(f"{what} is not the JSON of a run store: {fault}; look at what is stored")


def _parsed(what: str, answer: Answer, kind: type[T]) -> T:
    try:
        value = json.loads(answer.body)
        if not isinstance(value, kind):
            raise TypeError(f"it is no {kind.__name__}")
    except (ValueError, TypeError, RecursionError) as fault:
        raise _not_json(what, fault) from None
    return value


def _blob(verb: str, run: str, key: str) -> str:
    return f"{verb} blob `{excerpt(key)}` of run `{excerpt(run)}`"
