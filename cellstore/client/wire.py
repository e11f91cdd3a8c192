"""What both drivers share of httpx: settings, and what its answers and faults mean."""

from __future__ import annotations

import os
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import httpx

from cellstore.client.core import Answer, Result, Rules, Send, Silence, Unsent
from cellstore.client.targets import ANYWHERE, Target, parse_patterns, parse_target

URL_VARIABLE = "CHIDORI_RUN_STORE"
TOKEN_VARIABLE = "CHIDORI_RUN_STORE_TOKEN"  # noqa: S105

# Servers keep idle connections for 120 s; a client that gives them up earlier never writes into
# one that is being closed.
_IDLE = 90.0


class Options(TypedDict, total=False):
    """Settings of a client. Times are in seconds.

    `timeout`: how long a server may be silent (30; nodes hold requests up to 20).
    `connect_timeout`: for a connection (5). `deadline`: for an operation with all its repeats (60).
    `connections`: at most so many at once (20). `allow_owner_urls`: patterns of the servers that
    a 409 may lead to, see `targets.py` (any); the token is sent there. `verify`: how certificates
    are checked, see httpx. `now`, `wall`, `jitter`: see `core.Rules`.
    """

    timeout: float
    connect_timeout: float
    deadline: float
    connections: int
    allow_owner_urls: Sequence[str]
    verify: ssl.SSLContext | bool
    now: Callable[[], float]
    wall: Callable[[], float]
    jitter: Callable[[], float]


class Wire:
    """A client's rules and how it uses httpx. Raises ValueError for a bad setting."""

    def __init__(self, url: str, token: str | None, **options: Unpack[Options]) -> None:
        self.rules = Rules(
            base=_base(url),
            allowed=parse_patterns(options.get("allow_owner_urls", ANYWHERE)),
            timeout=options.get("timeout", 30.0),
            deadline=options.get("deadline", 60.0),
            # The machines of scripts are not all Linux, which the node's clock is made for.
            now=options.get("now", time.monotonic),  # noqa: TID251
            wall=options.get("wall", time.time),  # noqa: TID251
            jitter=options.get("jitter", _jitter),
            secret=_checked(token),
        )
        self._connect_timeout = options.get("connect_timeout", 5.0)
        self.settings: dict[str, Any] = {
            "headers": {"accept-encoding": "gzip", "user-agent": "cellstore-client"}
            | ({} if token is None else {"authorization": f"Bearer {token}"}),
            "limits": httpx.Limits(
                max_connections=options.get("connections", 20), keepalive_expiry=_IDLE
            ),
            "verify": options.get("verify", True),
            "follow_redirects": False,
            # A proxy from the environment would be handed the token.
            "trust_env": False,
        }

    def request(self, send: Send) -> dict[str, Any]:
        """The arguments of httpx's `build_request`."""
        return {
            "method": send.call.method,
            "url": send.server + send.call.target,
            "headers": dict(send.call.headers),
            "content": send.call.body,
            "timeout": httpx.Timeout(
                send.timeout, connect=min(send.timeout, self._connect_timeout)
            ),
        }

    def streams(self, send: Send, response: httpx.Response) -> bool:
        """Whether the body of this answer is left to come."""
        return send.call.streams and response.is_success

    def late(self, send: Send) -> bool:
        """Whether the time for this answer is over, though it still trickles in."""
        return self.rules.now() >= send.until


def answer(response: httpx.Response, body: bytes) -> Answer:
    """An answer whose body was read."""
    return Answer(response.status_code, dict(response.headers), body)


LATE = Silence("it did not end in time")


def failed(fault: httpx.RequestError) -> Result:
    """What a fault of httpx means: whether the request may have been sent."""
    why = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
    if isinstance(fault, httpx.ConnectError):
        return Unsent(why, lasting=_untrusted(fault))
    if isinstance(fault, (httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)):
        return Unsent(why)
    return Silence(why)


def from_environment() -> tuple[str, str | None]:
    """The URL and the token. Raises ValueError naming the variable that is missing or empty."""
    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise ValueError(f"{URL_VARIABLE} is not set: give it the URL of a run store")
    return url, os.environ.get(TOKEN_VARIABLE)


def _base(url: str) -> Target:
    target = parse_target(url)
    if target is None:
        # It may hold a password.
        raise ValueError("the URL of a run store is http(s)://HOST[:PORT][/PREFIX], nothing more")
    return target


def _checked(token: str | None) -> str | None:
    if token is None:
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("the token is empty or holds what no header can; leave it out for none")
    return token


def _untrusted(fault: BaseException | None) -> bool:
    """Whether a certificate is at fault, which time does not mend."""
    while fault is not None:
        if isinstance(fault, ssl.SSLCertVerificationError):
            return True
        fault = fault.__cause__ or fault.__context__
    return False


def _jitter() -> float:
    return secrets.randbelow(1 << 32) / (1 << 32)
