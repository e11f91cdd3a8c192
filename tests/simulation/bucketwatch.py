"""What must hold of the bucket after every single change of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cellstore.lineage import MAX_PIECES
from tests.fakes.bucket import Bucket, Mutation
from tests.simulation.stored import Damaged, Image, Reader

MAX_UPLOADS = 4


class BucketWatch:
    """Follows the newest record of each cell, and what it needs to be there."""

    def __init__(self, bucket: Bucket, violate: Callable[[str], object]) -> None:
        self._bucket = bucket
        self._violate = violate
        self._reader = Reader(self._get)
        self.newest: dict[str, dict[str, Any]] = {}
        self._needed: dict[str, frozenset[str]] = {}
        # Keys that were deleted once: they must never be listed again.
        self._deleted: set[str] = set()
        self.most_records: dict[str, int] = {}

    def _get(self, key: str) -> bytes | None:
        held = self._bucket.objects.get(key)
        return None if held is None else held.data

    def image(self, cell: str) -> Image:
        """The cell as its newest record has it. Raises Damaged."""
        return Reader(self._get).image(self.newest[cell])

    def needed(self, cell: str) -> frozenset[str]:
        """The keys that the cell's newest record needs."""
        return self._needed.get(cell, frozenset())

    def record_new(self, cell: str, data: bytes) -> tuple[dict[str, Any], Image] | None:
        """A record became the newest. Returns it and what it stands for; None if it is bad."""
        record: dict[str, Any] = json.loads(data)
        self.newest[cell] = record
        epoch = record["epoch"]
        needed = {f"cells/{cell}/meta/{epoch:020d}.json"}
        if record["base"] is not None:
            needed.add(record["base"]["key"])
        for piece in record["pieces"]:
            key = piece.get("key") or f"cells/{cell}/meta/{piece['epoch']:020d}.json"
            needed.add(key)
            if piece["uploads"] > MAX_UPLOADS:
                self._violate(f"{cell}: epoch {epoch} uploads a change {piece['uploads']} times")
        if len(record["pieces"]) > MAX_PIECES:
            self._violate(f"{cell}: epoch {epoch} lists {len(record['pieces'])} pieces")
        self._needed[cell] = frozenset(needed)
        for key in needed:
            if key not in self._bucket.objects:
                self._violate(f"{cell}: epoch {epoch} lists {key}, which is not there")
            elif key in self._deleted and "/state/" in key:
                self._violate(f"{cell}: epoch {epoch} lists {key}, which was deleted before")
        try:
            return record, self._reader.image(record)
        except Damaged as fault:
            self._violate(f"{cell}: epoch {epoch} cannot be restored: {fault}")
            return None

    def record_gone(self, cell: str, epoch: int) -> None:
        """A record was deleted."""
        self._gone(cell, f"cells/{cell}/meta/{epoch:020d}.json")

    def state_changed(self, mutation: Mutation) -> None:
        """A segment or snapshot was written or deleted."""
        cell = mutation.key.split("/")[1]
        if mutation.data is None:
            self._deleted.add(mutation.key)
            self._gone(cell, mutation.key)
        elif mutation.key in self._needed.get(cell, ()):
            try:
                self.image(cell)
            except Damaged as fault:
                self._violate(f"{cell}: {mutation.key} was written again: {fault}")

    def _gone(self, cell: str, key: str) -> None:
        if key in self._needed.get(cell, ()):
            self._violate(f"{cell}: {key} is deleted, and the newest record lists it")
