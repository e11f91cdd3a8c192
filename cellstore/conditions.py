"""Preconditions of blob writes: `If-Match` and `If-None-Match`, evaluated with the write."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_TAGS = re.compile(rb'(W/)?"([^"]*)"')


def digest(data: bytes) -> str:
    """The entity tag of a blob, without quotes: the lowercase hex SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of the stored blob for a write to happen.

    `present` says whether a blob must be there (None: either); `tags` limits it to, or with
    `present` None keeps it out of, the listed entity tags.
    """

    present: bool | None
    tags: frozenset[str] | None = None

    def holds(self, data: bytes | None) -> bool:
        """Whether a write may replace `data`, the stored bytes (None: there is no blob)."""
        if data is None:
            return self.present is not True
        if self.present is False:
            return False
        if self.tags is None:
            return True
        return (digest(data) in self.tags) is (self.present is True)


MUST_BE_ABSENT = Condition(present=False)
MUST_EXIST = Condition(present=True)


def parse_condition(if_match: bytes | None, if_none_match: bytes | None) -> Condition | None:
    """Read the two headers (None: not sent). `If-None-Match: *` wins over everything else.

    Weak tags never match, as RFC 9110 has it for writes; a value that holds no tag matches nothing.
    """
    if if_none_match is not None and if_none_match.strip() == b"*":
        return MUST_BE_ABSENT
    if if_match is not None:
        if if_match.strip() == b"*":
            return MUST_EXIST
        return Condition(present=True, tags=_strong_tags(if_match))
    if if_none_match is not None:
        return Condition(present=None, tags=_all_tags(if_none_match))
    return None


def _strong_tags(value: bytes) -> frozenset[str]:
    return frozenset(tag.decode("latin-1") for weak, tag in _TAGS.findall(value) if not weak)


def _all_tags(value: bytes) -> frozenset[str]:
    return frozenset(tag.decode("latin-1") for _, tag in _TAGS.findall(value))
