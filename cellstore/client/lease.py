"""A run's lease: the blob `lease.json`, swapped by conditional writes.

Every holder gives an `owner` that nobody else has: a lease in that name counts as one's own. So
after a write whose outcome is not known, what is there tells who has it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from cellstore.client.core import Pause, Plan, Rules
from cellstore.client.errors import (
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    PreconditionFailed,
    StoreBroken,
)
from cellstore.client.plans import Blob, compare_and_swap, delete_blob, get_blob
from cellstore.clock import iso
from cellstore.conditions import digest
from cellstore.names import excerpt

KEY = "lease.json"

_LONGEST = 365 * 86_400


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as it was written: its tag, and when it ends by the wall clock."""

    etag: str
    expires_at: float


class Terms:
    """Of which run, for whom and for how long a lease is, and what is held of it."""

    def __init__(self, rules: Rules, run: str, owner: str, ttl: float) -> None:
        if not owner or not 0 < ttl <= _LONGEST:
            raise ValueError(f"a lease needs an owner and a ttl of 0 to {_LONGEST} seconds")
        self.run = run
        self.owner = owner
        self.ttl = ttl
        self._rules = rules
        self._held: Held | None = None

    @property
    def expires_at(self) -> float | None:
        """When it ends, in seconds since 1970; None while it is not held."""
        return None if self._held is None else self._held.expires_at

    @property
    def remaining(self) -> float:
        """Seconds until it ends if it is not renewed; 0 when it is not held or is over."""
        return 0.0 if self._held is None else max(0.0, self._held.expires_at - self._rules.wall())

    def __repr__(self) -> str:
        return f"<lease of run {self.run!r} for {self.owner!r}, {self.remaining:.1f} s left>"

    def _taken(self) -> Held:
        if self._held is None:
            raise LeaseLost(f"lease of run `{excerpt(self.run)}`: it is not held; acquire it")
        return self._held


def acquire(rules: Rules, run: str, owner: str, ttl: float) -> Plan[Held]:
    """Take the lease if it is free, over, or `owner`'s already. Raises LeaseHeld."""
    end = rules.now() + rules.deadline
    while True:
        blob = yield from get_blob(rules, run, KEY)
        if blob is not None:
            holder, text, until = _parse(run, blob)
            if holder != owner and until > rules.wall():
                message = f"lease of run `{excerpt(run)}`: `{excerpt(holder)}` has it until {text}"
                raise LeaseHeld(message, holder, text)
        body, until = _format(owner, rules.wall() + ttl)
        try:
            etag = yield from compare_and_swap(rules, run, KEY, blob and blob.etag, body)
        except (PreconditionFailed, OutcomeUnknown):
            if rules.now() >= end:
                raise
        else:
            return Held(etag, until)
        yield Pause(0.1 + 0.1 * rules.jitter())


def renew(rules: Rules, run: str, owner: str, ttl: float, held: Held) -> Plan[Held]:
    """Make the lease last `ttl` from now. Raises LeaseLost if another lease stands there."""
    end = rules.now() + rules.deadline
    body, until = _format(owner, rules.wall() + ttl)
    renewed = Held(digest(body), until)
    while True:
        try:
            yield from compare_and_swap(rules, run, KEY, held.etag, body)
        except (PreconditionFailed, OutcomeUnknown) as fault:
            blob = yield from get_blob(rules, run, KEY)
            if blob is None or blob.etag not in (renewed.etag, held.etag):
                raise _lost(run, blob) from None
            if blob.etag == held.etag:
                if rules.now() >= end:
                    raise fault from None
                yield Pause(0.1 + 0.1 * rules.jitter())
                continue
        return renewed


def release(rules: Rules, run: str, held: Held) -> Plan[None]:
    """Remove the lease. Raises LeaseLost if it was not there any more."""
    end = rules.now() + rules.deadline
    doubtful = False
    while True:
        try:
            yield from delete_blob(rules, run, KEY, if_match=held.etag)
        except PreconditionFailed:
            if doubtful:
                # An attempt of ours may have removed it, and another may have come since.
                return
            blob = yield from get_blob(rules, run, KEY)
            raise _lost(run, blob) from None
        except OutcomeUnknown:
            doubtful = True
            if rules.now() >= end:
                raise
        else:
            return
        yield Pause(0.1 + 0.1 * rules.jitter())


def _lost(run: str, blob: Blob | None) -> LeaseLost:
    try:
        who = "nobody has it" if blob is None else f"`{excerpt(_parse(run, blob)[0])}` has it"
    except StoreBroken:
        who = "what stands there is no lease"
    return LeaseLost(f"lease of run `{excerpt(run)}`: it was lost, {who} now; stop the work")


def _format(owner: str, until: float) -> tuple[bytes, float]:
    text = json.dumps({"owner": owner, "expires_at": iso(until)}, indent=2, ensure_ascii=False)
    return text.encode(), until


def _parse(run: str, blob: Blob) -> tuple[str, str, float]:
    """Who holds the lease, and until when: as text, and in seconds since 1970."""
    try:
        lease = json.loads(blob.data)
        owner, text = lease["owner"], lease["expires_at"]
        until = datetime.fromisoformat(text)
        if not isinstance(owner, str):
            raise TypeError("its owner is no text")
    except (ValueError, TypeError, KeyError, RecursionError) as fault:
        raise StoreBroken(
            f"lease of run `{excerpt(run)}`: {KEY} is not a lease: {excerpt(fault)}; "
            "look into it, and delete it if nobody works on the run"
        ) from None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return owner, text, until.timestamp()
