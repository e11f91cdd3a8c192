"""Reading a cell from the bucket by the page on its format, with nothing of the program's own.

Records are parsed as JSON, pieces decompressed and opened as SQLite databases. Each piece is read
once and kept by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import zstandard

from tests.simulation.versions import State

Fields = dict[str, Any]


class Damaged(Exception):
    """What is in the bucket is not what the format says."""


class Rows(NamedTuple):
    """A piece's tables."""

    records: list[tuple[int, int, int, bytes]]
    blobs: list[tuple[str, int, bytes | None]]
    marks: dict[str, int]
    revision: int
    position: int


class Image(NamedTuple):
    """A cell's rows after some pieces: records by seq, blobs by key, where it stands."""

    records: dict[int, tuple[int, int, bytes]]
    blobs: dict[str, tuple[int, bytes | None]]
    revision: int
    position: int

    def state(self) -> State:
        entries = sorted((pos, seq, text) for seq, (pos, _, text) in self.records.items())
        blobs = {key: data for key, (_, data) in self.blobs.items() if data is not None}
        return State(tuple((seq, text) for _, seq, text in entries), blobs)


NOTHING = Image({}, {}, 0, 0)


class Reader:
    """Reads images of cells. `get` gives the bytes of an object, None where there is none."""

    def __init__(self, get: Callable[[str], bytes | None]) -> None:
        self._get = get
        self._pieces: dict[str, Rows] = {}
        self._images: dict[tuple[str, ...], Image] = {(): NOTHING}

    def image(self, record: Fields) -> Image:
        """What `record` stands for. Raises Damaged."""
        hashes: tuple[str, ...] = ()
        image, at = NOTHING, 0
        base = record["base"]
        if base is not None:
            hashes, at = (base["sha256"],), base["rev"]
            if hashes not in self._images:
                data = self._object(base["key"], base["sha256"], base["size"])
                self._images[hashes] = _apply(NOTHING, self._rows(base["sha256"], data))
            image = self._images[hashes]
            if image.revision != at:
                raise Damaged(f"a base of revision {at} says {image.revision}")
        for piece in record["pieces"]:
            if piece["from"] != at or piece["to"] <= at:
                raise Damaged(f"a piece from {piece['from']} to {piece['to']} follows {at}")
            at = piece["to"]
            hashes = (*hashes, piece["sha256"])
            if hashes not in self._images:
                rows = self._rows(piece["sha256"], self._piece(record, piece))
                self._images[hashes] = _apply(image, rows)
            image = self._images[hashes]
            if image.revision != at:
                raise Damaged(f"a piece to revision {at} says {image.revision}")
        if at != record["rev"]:
            raise Damaged(f"the pieces end at {at}, the record says {record['rev']}")
        return image

    def _piece(self, record: Fields, piece: Fields) -> bytes:
        if ("epoch" in piece) == ("key" in piece):
            raise Damaged("a piece has an epoch or a key")
        if "key" in piece:
            return self._object(piece["key"], piece["sha256"], piece["size"])
        held = record
        if piece["epoch"] != record["epoch"]:
            data = self._get(f"cells/{record['cell']}/meta/{piece['epoch']:020d}.json")
            if data is None:
                raise Damaged(f"the record of epoch {piece['epoch']} is listed and gone")
            held = json.loads(data)
        if held.get("delta") is None:
            raise Damaged(f"epoch {piece['epoch']} is listed for a change and has none")
        return _checked(base64.b64decode(held["delta"]), piece["sha256"], piece["size"])

    def _object(self, key: str, sha256: str, size: int) -> bytes:
        data = self._get(key)
        if data is None:
            raise Damaged(f"{key} is listed and gone")
        return _checked(data, sha256, size)

    def _rows(self, sha256: str, data: bytes) -> Rows:
        rows = self._pieces.get(sha256)
        if rows is None:
            rows = self._pieces[sha256] = _parse(data)
        return rows


def _checked(data: bytes, sha256: str, size: int) -> bytes:
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise Damaged("a piece is not the one that is listed")
    return data


def _parse(data: bytes) -> Rows:
    image = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    with closing(sqlite3.connect(":memory:")) as piece:
        piece.deserialize(image)
        records = piece.execute(
            "SELECT seq, pos, rev, CAST(data AS BLOB) FROM records ORDER BY seq"
        ).fetchall()
        blobs = piece.execute("SELECT key, rev, data FROM blobs ORDER BY key").fetchall()
        marks = dict(piece.execute("SELECT name, rev FROM marks").fetchall())
        ((revision, position),) = piece.execute("SELECT revision, position FROM counters")
    return Rows(records, blobs, marks, revision, position)


def _apply(image: Image, rows: Rows) -> Image:
    mark = rows.marks.get("records", 0)
    records = {seq: row for seq, row in image.records.items() if row[1] >= mark}
    records |= {seq: (pos, rev, data) for seq, pos, rev, data in rows.records}
    blobs = image.blobs | {key: (rev, data) for key, rev, data in rows.blobs}
    return Image(records, blobs, rows.revision, rows.position)
