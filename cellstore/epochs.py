"""The record of one epoch of a cell, and the keys of a cell's objects in the bucket.

A record is one immutable JSON object of the epoch log. The record of the highest epoch is the
state of the cell: a base, then pieces in order, each from the revision where the last one ended.
See docs/storage-format.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from cellstore.errors import CellBroken

CELLS = "cells/"

# How the snapshots end that records name, and no object's key does.
PLACEHOLDER = "/state/see-base-and-pieces"

# Compressed changes up to this many bytes travel inside the record.
MAX_DELTA = 64 * 1024


class ForeignRecord(Exception):
    """A record that another kind of server wrote: it lacks this one's fields."""


@dataclass(frozen=True, slots=True)
class Base:
    """A snapshot: its key, the SHA-256 and size of the object, the revision it holds."""

    key: str
    sha256: str
    size: int
    rev: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The changes after revision `start` up to `end`, in a record's delta or in a segment.

    Exactly one of `epoch` and `key` is set. `size` and `sha256` are those of the compressed bytes.
    `uploads` counts how often the oldest of its changes was uploaded since the last snapshot.
    """

    epoch: int | None
    key: str | None
    start: int
    end: int
    size: int
    sha256: str
    uploads: int = 1


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One record. `ttl` in seconds; `lease_expires_at` and `updated_at` are for people to read."""

    cell: str
    epoch: int
    owner: str
    advertise: str | None
    lease_expires_at: str
    updated_at: str
    ttl: float
    term: int
    nonce: str
    disk: str
    boot: str
    rev: int
    base: Base | None
    pieces: tuple[Piece, ...]
    delta: bytes | None = None
    released: bool = False

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all objects that a restore of this record needs."""
        keys = {piece_key(self.cell, piece) for piece in self.pieces}
        if self.base is not None:
            keys.add(self.base.key)
        return frozenset(keys)

    def check_pieces(self) -> None:
        """Raise CellBroken where the pieces do not lead from the base to `rev` without a gap."""
        at = 0 if self.base is None else self.base.rev
        for piece in self.pieces:
            if (piece.epoch is None) == (piece.key is None):
                raise self._broken("a piece needs either an epoch or a key")
            if piece.start != at or piece.end <= piece.start:
                raise self._broken(f"a piece from {piece.start} to {piece.end} follows {at}")
            at = piece.end
        if at != self.rev:
            raise self._broken(f"its pieces end at {at}, it says {self.rev}")

    def check(self) -> None:
        """Raise CellBroken where `check_pieces` does, or the delta is not the last piece."""
        self.check_pieces()
        own = [piece for piece in self.pieces if piece.epoch == self.epoch]
        if (self.delta is None) != (not own) or own != list(self.pieces[-1:])[: len(own)]:
            raise self._broken("its delta is not its last piece")
        if self.delta is not None and hashlib.sha256(self.delta).hexdigest() != own[0].sha256:
            raise self._broken("its delta is not what its last piece describes")

    def encode(self) -> bytes:
        """The object's bytes. Raises CellBroken where `check` does."""
        self.check()
        fields = self._fields()
        if self.delta is not None:
            fields["delta"] = base64.b64encode(self.delta).decode()
        return orjson.dumps(fields)

    def encode_hint(self) -> bytes:
        """The record without its changes, as a local copy remembers it."""
        return orjson.dumps(self._fields())

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"cell": self.cell, "epoch": self.epoch, "owner": self.owner}
        if self.advertise is not None:
            fields["advertise"] = self.advertise
        fields |= {
            "lease_expires_at": self.lease_expires_at,
            # Names nothing: a server that knows no pieces must fail rather than serve old state.
            "snapshot": f"{CELLS}{self.cell}{PLACEHOLDER}",
            "updated_at": self.updated_at,
            "ttl": self.ttl,
            "term": self.term,
            "nonce": self.nonce,
            "disk": self.disk,
            "boot": self.boot,
            "rev": self.rev,
            "base": self.base,
            "pieces": [_encode_piece(piece) for piece in self.pieces],
            "released": self.released,
        }
        return fields

    def _broken(self, reason: str) -> CellBroken:
        return CellBroken(f"epoch {self.epoch} of it does not hold together: {reason}")


def _encode_piece(piece: Piece) -> dict[str, Any]:
    place = {"epoch": piece.epoch} if piece.key is None else {"key": piece.key}
    return place | {
        "from": piece.start,
        "to": piece.end,
        "size": piece.size,
        "sha256": piece.sha256,
        "uploads": piece.uploads,
    }


def decode(data: bytes, cell: str, epoch: int) -> EpochRecord:
    """Read the record of `epoch`. Raises ForeignRecord, and CellBroken for a bad one of ours."""
    broken = f"epoch {epoch} of it is not a record: "
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as fault:
        raise CellBroken(f"{broken}{fault}") from None
    if not isinstance(fields, dict):
        raise CellBroken(f"{broken}it is no JSON object")
    if "nonce" not in fields:
        raise ForeignRecord(f"cells/{cell}: epoch {epoch} was written by another server")
    try:
        record = _record(fields)
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as fault:
        raise CellBroken(f"{broken}{type(fault).__name__} {fault}") from None
    if (record.cell, record.epoch) != (cell, epoch):
        raise CellBroken(f"{broken}it says cell `{record.cell}`, epoch {record.epoch}")
    record.check()
    return record


def decode_hint(data: bytes) -> EpochRecord | None:
    """Read what a local copy remembers; None where it cannot be read, for it is but a hint."""
    try:
        record = _record(orjson.loads(data))
        record.check_pieces()
    except (AttributeError, KeyError, TypeError, ValueError, CellBroken):
        return None
    return record


def _record(fields: dict[str, Any]) -> EpochRecord:
    base = fields["base"]
    delta = fields.get("delta")
    return EpochRecord(
        cell=str(fields["cell"]),
        epoch=int(fields["epoch"]),
        owner=str(fields["owner"]),
        advertise=fields.get("advertise"),
        lease_expires_at=str(fields["lease_expires_at"]),
        updated_at=str(fields["updated_at"]),
        ttl=float(fields["ttl"]),
        term=int(fields["term"]),
        nonce=str(fields["nonce"]),
        disk=str(fields["disk"]),
        boot=str(fields["boot"]),
        rev=int(fields["rev"]),
        base=None
        if base is None
        else Base(str(base["key"]), str(base["sha256"]), int(base["size"]), int(base["rev"])),
        pieces=tuple(
            Piece(
                epoch=piece.get("epoch"),
                key=piece.get("key"),
                start=int(piece["from"]),
                end=int(piece["to"]),
                size=int(piece["size"]),
                sha256=str(piece["sha256"]),
                uploads=int(piece["uploads"]),
            )
            for piece in fields["pieces"]
        ),
        delta=None if delta is None else base64.b64decode(delta, validate=True),
        released=bool(fields["released"]),
    )


def cell_prefix(cell: str) -> str:
    """What the keys of all of a cell's objects start with."""
    return f"{CELLS}{cell}/"


def meta_prefix(cell: str) -> str:
    """What the keys of a cell's epoch log start with."""
    return f"{CELLS}{cell}/meta/"


def meta_key(cell: str, epoch: int) -> str:
    """The key of one record; keys sort as epochs do."""
    return f"{CELLS}{cell}/meta/{epoch:020d}.json"


def epoch_of(key: str) -> int | None:
    """The epoch that a key of the epoch log stands for; None for any other key."""
    name = key.rpartition("/meta/")[2]
    digits = name.removesuffix(".json")
    if len(name) == 25 and len(digits) == 20 and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def state_key(cell: str, kind: str, end: int, fresh: str, sha256: str) -> str:
    """The key of a segment (`seg`) or snapshot (`db`). `fresh` was never used before."""
    return f"{CELLS}{cell}/state/{end:020d}-{fresh}.{sha256}.{kind}"


def piece_key(cell: str, piece: Piece) -> str:
    """The key of the object that holds a piece."""
    if piece.key is not None:
        return piece.key
    assert piece.epoch is not None
    return meta_key(cell, piece.epoch)
