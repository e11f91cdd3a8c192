"""Preconditions of blob writes: `If-Match` and `If-None-Match`, evaluated with the write."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_TAGS = re.compile(rb'(W/)?"([^"]*)"')

# Stands for `*`: any tag there is.
ANY: Final = None

Tags = frozenset[str] | None


def digest(data: bytes) -> str:
    """The entity tag of a blob, without quotes: the lowercase hex SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Match:
    """The stored blob must have one of these tags."""

    tags: Tags

    def holds(self, data: bytes | None) -> bool:
        return data is not None and (self.tags is ANY or digest(data) in self.tags)


@dataclass(frozen=True, slots=True)
class NoneMatch:
    """The stored blob must have none of these tags."""

    tags: Tags

    def holds(self, data: bytes | None) -> bool:
        return data is None or (self.tags is not ANY and digest(data) not in self.tags)


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of the stored blob (None: there is none) for a write to happen."""

    parts: tuple[Match | NoneMatch, ...]

    def holds(self, data: bytes | None) -> bool:
        return all(part.holds(data) for part in self.parts)


MUST_BE_ABSENT = Condition((NoneMatch(ANY),))


def parse_condition(if_match: bytes | None, if_none_match: bytes | None) -> Condition | None:
    """Read the two headers (None: not sent). `If-None-Match: *` wins over everything else.

    Weak tags never match in `If-Match`, as RFC 9110 has it; a value that holds no tag has none.
    """
    if if_none_match is not None and if_none_match.strip() == b"*":
        return MUST_BE_ABSENT
    parts: list[Match | NoneMatch] = []
    if if_match is not None:
        parts.append(Match(_tags(if_match, weak=False)))
    if if_none_match is not None:
        parts.append(NoneMatch(_tags(if_none_match, weak=True)))
    return Condition(tuple(parts)) if parts else None


def _tags(value: bytes, *, weak: bool) -> Tags:
    if value.strip() == b"*":
        return ANY
    return frozenset(
        tag.decode("latin-1") for prefix, tag in _TAGS.findall(value) if weak or not prefix
    )
