"""The requests that are measured, as the bytes that the real client would send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

TOKEN = "bench"
BLOB_BYTES = 10 * 1024
BLOB_KEY = "manifest.json"

_ALWAYS = f"host: 127.0.0.1\r\naccept: */*\r\nauthorization: Bearer {TOKEN}\r\n".encode()
_GZIP = b"accept-encoding: gzip\r\n"


class Work(NamedTuple):
    """Requests of one kind to one run: `times` many, numbered from `start`."""

    kind: str
    run: str
    start: int = 1
    times: int = 1

    def requests(self) -> Iterator[bytes]:
        """Their bytes, in order."""
        for number in range(self.start, self.start + self.times):
            yield self._request(number)

    def _request(self, number: int) -> bytes:
        records = f"/runs/{self.run}/records"
        blob = f"/runs/{self.run}/blobs/{BLOB_KEY}"
        match self.kind:
            case "append":
                return _message("POST", records, record(number), "application/json")
            case "put":
                return _message("PUT", blob, blob_bytes(number), "application/octet-stream")
            case "fetch":
                return _message("GET", blob)
            case "read":
                return _message("GET", records)
            case "read-plain":
                return _message("GET", records, gzip=False)
            case "status":
                return _message("GET", "/status")
        raise ValueError(f"no kind of request is called `{self.kind}`")


def record(seq: int) -> bytes:
    """A journal record of about 600 bytes. No two are alike, so that compression is no miracle."""
    words = " ".join(f"{seq * step % 9973:04x}" for step in range(7, 80))
    return (
        f'{{"seq":{seq},"function":"tool","args":{{"name":"charge","input":{{"cents":{seq * 100},'
        f'"note":"one entry of the ledger"}}}},"result":{{"receipt":"r-{seq}","text":"{words}"}},'
        f'"duration_ms":{seq % 90},"timestamp":"2026-11-30T14:00:30.{seq % 10**6:06d}Z"}}'
    ).encode()


def blob_bytes(number: int) -> bytes:
    """A blob of 10 KB that differs from that of any other number."""
    line = f'  "{number}": "{number * 7919 % 999983:06d}",\n'.encode()
    return (line * (BLOB_BYTES // len(line) + 1))[:BLOB_BYTES]


def _message(
    method: str, path: str, body: bytes | None = None, media_type: str = "", *, gzip: bool = True
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\n".encode() + _ALWAYS + (_GZIP if gzip else b"")
    if body is None:
        return head + b"\r\n"
    told = f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head + told.encode() + body
