"""Looking at an epoch log: how long a record was watched, where the store tells no time."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from cellstore.clock import Reading
from cellstore.epochlog import EpochLog
from cellstore.epochs import EpochRecord, Piece, meta_key
from tests.fakes.bucket import BucketClient, Faults
from tests.support.stores import fake_bucket

DELTA = b"changes"
RECORD = EpochRecord(
    cell="c",
    epoch=1,
    owner="n",
    advertise=None,
    lease_expires_at="",
    updated_at="",
    ttl=30.0,
    term=1,
    nonce="one",
    disk="d",
    boot="b",
    rev=1,
    base=None,
    pieces=(Piece(1, None, 0, 1, len(DELTA), hashlib.sha256(DELTA).hexdigest()),),
    delta=DELTA,
)


class TwoClocks:
    """Clocks that are set by hand."""

    def __init__(self) -> None:
        self.boot = 100.0
        self.wall = 1000.0

    def monotonic(self) -> float:
        return self.boot

    def reading(self) -> Reading:
        return Reading(self.boot, self.wall)


async def test_a_clock_that_is_set_ends_nobodys_lease() -> None:
    bucket, clock = fake_bucket(), TwoClocks()
    bucket.create(meta_key("c", 1), RECORD.encode())
    log = EpochLog("c", BucketClient(bucket, Faults(no_date=True)), clock)
    seen = await log.look()
    assert (seen.top, seen.age, seen.watched) == (1, None, 0.0)
    clock.wall += 3600
    assert (await log.look()).watched == 0.0
    clock.boot += 7
    assert (await log.look()).watched == 7.0
    newer = replace(RECORD, epoch=2, nonce="two", delta=None)
    bucket.create(meta_key("c", 2), newer.encode())
    seen = await log.look()
    assert (seen.top, seen.watched) == (2, 0.0)
