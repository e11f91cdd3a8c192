"""Text such as models write: no two records alike, and zstd makes about a third of it.

A random walk over phrases that were drawn from a list of words, some of them far more often than
others, as in every language. What a bucket is sent depends on how well records can be compressed,
so filler of one letter, or of random bytes, would measure nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from random import Random  # noqa: TID251

import orjson
import zstandard

_LEVEL = 3
_PHRASES = 60_000
# How much rarer each next phrase is, as a power of its place.
_STEEPNESS = 0.5
# One phrase in so many ends with a figure: an amount, an identifier, a size.
_FIGURES = 5

_WORDS = """
the of and to a in that is it for was on with as be this by at from or have an not are but were
which one all we can has there been if more when will would who so what up out about into than them
then some could these two may other do first any new time now also after only most over such where
much must through back before between under while never last another being same each might few long
value result file function test error order request customer account payment invoice record report
system process server client response message token model agent tool call step plan answer question
check update change version release build deploy review commit branch merge table column index query
schema database cache queue worker thread memory limit window budget total average median estimate
number amount balance credit charge refund ledger entry note summary detail section paragraph source
reference evidence claim reason cause effect problem solution option choice decision policy rule law
condition contract agreement party address country region market price product supplier delivery
shipment warehouse stock order return delay warning failure retry timeout signal event handler path
directory folder package module library interface parameter argument object string integer boolean
list array map set key pair lookup search filter sort group count sum minimum maximum range interval
date hour minute second day week month year quarter morning evening today yesterday tomorrow early
late recent current previous next following above below left right high low large small short full
empty open closed valid invalid missing present available required optional possible likely certain
clear simple complex common rare similar different equal greater less better worse best worst good
found shows means uses needs makes takes gives keeps holds reads writes sends receives creates opens
closes starts stops runs fails passes returns expects contains includes excludes matches follows
compare consider assume suggest recommend confirm verify explain describe measure calculate convert
because although however therefore instead otherwise meanwhile finally additionally specifically
according regarding within without across against during toward among despite unless until whether
carefully quickly directly exactly roughly mostly usually often sometimes rarely always already soon
people team user owner manager engineer analyst reader writer author company service project task
document chapter figure example sample draft final email ticket issue comment thread reply feedback
"""


class Prose:
    """A source of text, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        words = _WORDS.split()
        common = list(accumulate(1 / (10 + place) for place in range(len(words))))
        self._phrases = [self._phrase(words, common) for _ in range(_PHRASES)]
        self._weights = list(
            accumulate(1 / (10 + place) ** _STEEPNESS for place in range(_PHRASES))
        )

    def _phrase(self, words: list[str], common: list[float]) -> str:
        rng = self._rng
        parts = rng.choices(words, cum_weights=common, k=rng.randint(1, 4))
        if rng.randrange(_FIGURES) == 0:
            parts.append(str(rng.randrange(10**6)))
        return " ".join(parts) + rng.choices((" ", ", ", ". "), (12, 2, 1))[0]

    def text(self, length: int) -> str:
        """So many ASCII characters."""
        parts: list[str] = []
        left = length
        while left > 0:
            more = self._rng.choices(self._phrases, cum_weights=self._weights, k=1 + left // 16)
            parts += more
            left -= sum(map(len, more))
        return "".join(parts)[:length]

    def record(self, seq: int, size: int) -> bytes:
        """A journal record of `size` bytes."""
        empty = _around(seq, size, "")
        return _around(seq, size, self.text(size - len(empty)))


def _around(seq: int, size: int, text: str) -> bytes:
    stamp = f"2026-11-30T14:{seq // 60 % 60:02d}:{seq % 60:02d}.{seq * 7919 % 10**6:06d}Z"
    return orjson.dumps({
        "seq": seq,
        "function": "llm",
        "args": {"model": "large", "max_tokens": 1024},
        "result": {"text": text, "usage": {"input": 100 + seq % 900, "output": size // 4}},
        "duration_ms": seq * 7919 % 4000,
        "timestamp": stamp,
    })  # fmt: skip


def ratio(records: Iterable[bytes]) -> float:
    """How many times smaller they are when compressed together, as pieces are."""
    data = b"".join(records)
    return len(data) / len(zstandard.ZstdCompressor(_LEVEL).compress(data))
