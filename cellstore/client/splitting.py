"""A JSON array cut into the texts of its elements while it arrives, in pieces of any size."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WHITESPACE = b" \t\r\n"
# Strings that end in the same piece are passed at once; a comma matters between elements only.
_SHALLOW = re.compile(rb'"[^"\\]*"|["\[\]{},]')
_DEEP = re.compile(rb'"[^"\\]*"|["\[\]{}]')
_INSIDE = re.compile(rb'["\\]')


class Splitter:
    """Takes bytes in and gives whole elements out; holds no more than the one that is unfinished.

    It finds where elements end and leaves it to their parser whether they are JSON. Raises
    ValueError where the text is no array.
    """

    def __init__(self) -> None:
        self._element = bytearray()
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._some = False
        self._over = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The elements that `data` completes. It must be used up before the next piece is fed."""
        start = at = 0
        while at < len(data):
            if self._in_string:
                at = self._pass_string(data, at)
                continue
            if self._depth == 0:
                at = start = self._pass_outside(data, at)
                continue
            found = (_SHALLOW if self._depth == 1 else _DEEP).search(data, at)
            if found is None:
                break
            at = found.end()
            mark = found.group()
            if mark.startswith(b'"'):
                self._in_string = len(mark) == 1
            elif mark in b"[{":
                self._depth += 1
            elif mark in b"]}" and self._depth > 1:
                self._depth -= 1
            elif self._depth == 1:
                self._element += data[start : at - 1]
                start = at
                yield from self._finished(mark)
        if self._depth:
            self._element += data[start:]

    def end(self) -> None:
        """Say that no more comes. Raises ValueError if the array is not whole."""
        if not self._over:
            raise ValueError("the array breaks off")

    def _pass_string(self, data: bytes, at: int) -> int:
        """Where to go on: past an escape or the end of the string, or at the end of `data`."""
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _INSIDE.search(data, at)
        if found is None:
            return len(data)
        if found.group() == b'"':
            self._in_string = False
        else:
            self._escaped = True
        return found.end()

    def _pass_outside(self, data: bytes, at: int) -> int:
        """Pass what stands before or after the array; only whitespace may."""
        opening = -1 if self._over else data.find(b"[", at)
        end = len(data) if opening < 0 else opening
        if data[at:end].strip(_WHITESPACE):
            raise ValueError("it is not an array alone")
        if opening < 0:
            return end
        self._depth = 1
        return end + 1

    def _finished(self, mark: bytes) -> Iterator[bytes]:
        """The element before a comma or the closing bracket; an empty array has none."""
        text = bytes(self._element).strip(_WHITESPACE)
        self._element.clear()
        if mark == b"}":
            raise ValueError("its brackets do not match")
        if mark == b"]":
            self._depth = 0
            self._over = True
        if not text and (mark == b"," or self._some):
            raise ValueError("an element is missing")
        self._some = True
        if text:
            yield text
