"""Where requests may go: the base URL, and owners' URLs that patterns allow.

A client sends its token wherever it follows. So a URL is taken apart here, strictly, and what is
requested is what was taken apart: no part of it can mean one thing here and another elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from cellstore.names import excerpt

_PORTS = {"http": 80, "https": 443}

_URL = re.compile(
    r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?(/[a-z0-9._~/%@+,;=&$!'()*:-]*)?",
    re.IGNORECASE,
)
_PATTERN = re.compile(
    r"(https?|\*)://(\[[0-9a-f:.]+\]|[a-z0-9._*-]+)(?::([0-9]{1,5}|\*))?/?", re.IGNORECASE
)

# Any host and any port, in plain HTTP or not.
ANYWHERE = ("http://*:*", "https://*:*")


@dataclass(frozen=True, slots=True)
class Target:
    """A server: equal for two spellings of one URL. `path` is a prefix without the last slash."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}{self.path}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which servers may be followed to. `port` is None for any, 0 for the scheme's own."""

    scheme: str
    host: re.Pattern[str]
    port: int | None

    def allows(self, target: Target) -> bool:
        return (
            self.scheme in ("*", target.scheme)
            and self.host.fullmatch(target.host) is not None
            and (self.port is None or target.port == (self.port or _PORTS[target.scheme]))
        )


def parse_target(url: str) -> Target | None:
    """Take a URL apart. None unless it is `http(s)://HOST[:PORT][/PREFIX]` and nothing more."""
    found = _URL.fullmatch(url)
    if found is None:
        return None
    scheme, host, port, path = found.groups(default="")
    number = int(port or _PORTS[scheme.lower()])
    if not 0 < number < 65536 or {".", ".."} & set(path.split("/")):
        return None
    return Target(scheme.lower(), host.lower(), number, path.rstrip("/"))


def parse_patterns(patterns: Iterable[str]) -> tuple[Pattern, ...]:
    """Read patterns `SCHEME://HOST[:PORT]`.

    `*` stands for either scheme, for any part of a host, or for any port; without a port, only
    the scheme's own is meant. Raises ValueError naming a bad one.
    """
    return tuple(map(_pattern, patterns))


def _pattern(text: str) -> Pattern:
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise ValueError(
            f"`{excerpt(text)}` is not a pattern of URLs: write SCHEME://HOST[:PORT], with `*` "
            "for any scheme, part of a host, or port"
        )
    scheme, host, port = found.groups(default="")
    number = None if port == "*" else int(port or 0)
    # What stands for `*` was checked to be part of a host when the URL was taken apart.
    return Pattern(scheme.lower(), re.compile(re.escape(host.lower()).replace(r"\*", ".*")), number)
