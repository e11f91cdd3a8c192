"""What a client does next: pure decisions over answers, without I/O.

An operation is a plan: a generator that yields what is to be done, `Send` or `Pause`, is sent the
result, and returns what the operation returns. The drivers, one blocking and one asynchronous,
only perform. So both follow, repeat and give up alike.

If the rules here are wrong, a write is done twice or is reported as failed though it was done, or
a token goes to a stranger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

from cellstore.client.errors import (
    BadRequest,
    DiskFull,
    NotFound,
    OutcomeUnknown,
    OwnedElsewhere,
    PreconditionFailed,
    StoreBroken,
    StoreError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from cellstore.client.targets import Pattern, Target, parse_target
from cellstore.names import excerpt

T = TypeVar("T")

# Pauses between attempts, in seconds: doubled each time, up to the longest.
_SHORTEST = 0.1
_LONGEST = 2.0


class Repeats(Enum):
    """After what a request may be sent again. It always may where it was never sent."""

    ALWAYS = "whatever happened: sent twice is the same as sent once"
    ANSWERED = "also after a 503 that asks for it"
    UNSENT = "only if it was never sent: what a second one does depends on the first"


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `what` says it in words; `target` is the raw path, with the query if any."""

    what: str
    method: str
    target: str
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeats: Repeats = Repeats.ALWAYS
    # Statuses beside 2xx that are answers to what was asked, not errors.
    expects: frozenset[int] = frozenset()
    # The body of the answer is handed on as it comes.
    streams: bool = False

    @property
    def writes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def on_lease(self) -> bool:
        """Whether a 409 is the verdict on a lease, which no other node is asked about."""
        path = unquote(self.target.partition("?")[0])
        return path.rpartition("/")[2] == "lease.json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; header names are in lower case.

    `stream` is the driver's, for an answer whose body is still to come.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    stream: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Unsent:
    """No connection: the request was never sent. `lasting`: trying again cannot help."""

    why: str
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """The request was sent, in part or whole, and no whole answer came."""

    why: str


Result: TypeAlias = Answer | Unsent | Silence


@dataclass(frozen=True, slots=True)
class Send:
    """Send `call` to a server. `timeout` is for each step of it, `until` for all of it."""

    call: Call
    server: str
    timeout: float
    until: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for so many seconds. The result is None."""

    seconds: float


Effect: TypeAlias = Send | Pause
Plan: TypeAlias = Generator[Effect, Any, T]


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all requests of a client. Times are in seconds.

    `now` never goes back, `wall` is the time of day, `jitter` is drawn from [0, 1). `secret` is
    kept out of messages, where a server repeats it.
    """

    base: Target
    allowed: tuple[Pattern, ...]
    timeout: float
    deadline: float
    now: Callable[[], float]
    wall: Callable[[], float]
    jitter: Callable[[], float]
    secret: str | None = field(default=None, repr=False)

    def quoted(self, said: bytes | str) -> str:
        """What a server said, for a message."""
        text = said.decode("utf-8", "backslashreplace") if isinstance(said, bytes) else said
        return excerpt(text.replace(self.secret, "[token]") if self.secret else text, 200)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What to make of an attempt that failed.

    `again`: the same may be sent once more, `after` so many seconds at least. `maybe`: it may
    have been done nevertheless.
    """

    error: StoreError
    again: bool = False
    maybe: bool = False
    after: float = 0.0


def exchange(rules: Rules, call: Call) -> Plan[Answer]:
    """Send a request, and again while that is safe and there is time. Raises StoreError."""
    end = rules.now() + rules.deadline
    maybe = False
    backoff = _SHORTEST
    while True:
        outcome = yield from _attempt(rules, call, end)
        if isinstance(outcome, Answer):
            return outcome
        maybe = maybe or outcome.maybe
        pause = outcome.after + backoff * (0.5 + rules.jitter() / 2)
        if not outcome.again or rules.now() + pause >= end:
            if not maybe:
                raise outcome.error
            raise _unknown(call, outcome.error) from outcome.error
        yield Pause(pause)
        backoff = min(backoff * 2, _LONGEST)


def _attempt(rules: Rules, call: Call, end: float) -> Plan[Answer | Refusal]:
    """One request, and the one that follows it to the owner. Whatever that one meets is final."""
    outcome = yield from _once(rules, call, rules.base, end)
    if isinstance(outcome, Refusal) and rules.now() < end:
        owner = follow(rules, call, outcome.error)
        if owner is not None:
            return (yield from _once(rules, call, owner, end))
    return outcome


def _once(rules: Rules, call: Call, server: Target, end: float) -> Plan[Answer | Refusal]:
    timeout = max(0.001, min(rules.timeout, end - rules.now()))
    result: Result = yield Send(call, server.url, timeout, end)
    return judge(rules, call, result, server.url)


def follow(rules: Rules, call: Call, error: StoreError) -> Target | None:
    """The server to send the same request to, once; None to leave it at `error`."""
    if not isinstance(error, OwnedElsewhere) or error.owner_url is None or call.on_lease:
        return None
    owner = parse_target(error.owner_url)
    if owner is None or owner == rules.base:
        return None
    return owner if any(pattern.allows(owner) for pattern in rules.allowed) else None


def judge(rules: Rules, call: Call, result: Result, server: str) -> Answer | Refusal:
    """What the result of one request means."""
    if isinstance(result, Unsent):
        error = Unavailable(f"{call.what}: no connection to {server}: {result.why}")
        return Refusal(error, again=not result.lasting)
    if isinstance(result, Silence):
        error = Unavailable(f"{call.what}: no whole answer from {server}: {result.why}")
        return Refusal(error, again=call.repeats is Repeats.ALWAYS, maybe=call.writes)
    if 200 <= result.status < 300 or result.status in call.expects:
        return result
    said = f"{call.what}: {server} answers {result.status}"
    if result.status == 409:
        return Refusal(_owned_elsewhere(rules, said, result.body))
    if text := result.body.strip():
        said = f"{said}: {rules.quoted(text)}"
    if result.status in _DEFINITE:
        return Refusal(_DEFINITE[result.status](said))
    if result.status < 500:
        kind = StoreBroken if result.status < 400 else BadRequest
        return Refusal(kind(said))
    if result.status not in (502, 503, 504):
        return Refusal(StoreBroken(said), maybe=call.writes)
    after = _seconds(result.headers.get("retry-after")) if result.status == 503 else None
    asked = after is not None and call.repeats is Repeats.ANSWERED
    return Refusal(
        Unavailable(said),
        again=asked or call.repeats is Repeats.ALWAYS,
        maybe=call.writes,
        after=after or 0.0,
    )


# Answers after which nothing was done, and nothing comes of it later.
_DEFINITE: dict[int, type[StoreError]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    408: Unavailable,
    412: PreconditionFailed,
    413: TooLarge,
    429: Unavailable,
    507: DiskFull,
}


def _owned_elsewhere(rules: Rules, said: str, body: bytes) -> OwnedElsewhere:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    fields = told if isinstance(told, dict) else {}

    def text(name: str) -> str | None:
        value = fields.get(name)
        return value if isinstance(value, str) else None

    owner, url, expires = text("owner") or "unknown", text("owner_url"), text("lease_expires_at")
    error = text("error") or "owned elsewhere"
    where = f" at {rules.quoted(url)}" if url is not None else ""
    message = f"{said}: {rules.quoted(error)}, by `{rules.quoted(owner)}`{where}"
    return OwnedElsewhere(message, owner, expires, url)


def _unknown(call: Call, last: StoreError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{call.what}: it may be done or not; read before you decide ({last})", last
    )


def _seconds(retry_after: str | None) -> float | None:
    """The value of `Retry-After`; a date counts as one second, the least that it tells."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    return float(text) if text.isascii() and text.isdigit() else 1.0
