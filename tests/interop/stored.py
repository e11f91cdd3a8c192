"""What a node holds of one run."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote

from tests.interop.runtime import TOKEN
from tests.support.client import Answer, Client

Record = dict[str, Any]


class Stored:
    """A run, seen through the protocol."""

    def __init__(self, url: str, run: str) -> None:
        self._client = Client(url, TOKEN)
        self.run = run

    def close(self) -> None:
        self._client.close()

    def listed(self) -> bool:
        return self.run in self._found("/runs").json()

    def records(self) -> list[Record]:
        answer = self._client.get(f"/runs/{self.run}/records")
        if answer.status == 404:
            return []
        assert answer.status == 200, f"records: {answer.status}"
        records: list[Record] = answer.json()
        return records

    def blob_keys(self) -> list[str]:
        keys: list[str] = self._found(f"/runs/{self.run}/blobs").json()
        return keys

    def blob(self, key: str) -> bytes | None:
        answer = self._client.get(self._path(key))
        if answer.status == 404:
            return None
        assert answer.status == 200, f"{key}: {answer.status}"
        return answer.body

    def blobs(self) -> dict[str, bytes]:
        """All blobs; none of them may vanish meanwhile."""
        found = {key: self.blob(key) for key in self.blob_keys()}
        present = {key: body for key, body in found.items() if body is not None}
        assert len(present) == len(found)
        return present

    def answers(self) -> int:
        """The status of a read, which tells whether the node serves the run."""
        return self._client.get(f"/runs/{self.run}/blobs").status

    def put(self, key: str, body: bytes, **conditions: str) -> int:
        """The status of a write of a blob."""
        return self._client.put(self._path(key), body, **conditions).status

    def _path(self, key: str) -> str:
        return f"/runs/{self.run}/blobs/{quote(key)}"

    def _found(self, path: str) -> Answer:
        answer = self._client.get(path)
        assert answer.status == 200, f"{path}: {answer.status}"
        return answer


Content = tuple[list[Record], dict[str, bytes]]


def everything(url: str, without: str = "") -> tuple[dict[str, Content], list[Any]]:
    """All that a server holds: records and blobs by run, and the registry's entries.

    A run may be left out.
    """
    client = Client(url, TOKEN)
    answers = client.get("/runs"), client.get("/registry")
    assert [answer.status for answer in answers] == [200, 200]
    client.close()
    runs, entries = (answer.json() for answer in answers)
    return {run: _content(url, run) for run in runs if run != without}, entries


def _content(url: str, run: str) -> Content:
    stored = Stored(url, run)
    content = stored.records(), stored.blobs()
    stored.close()
    return content


def etag(body: bytes) -> str:
    """The condition that names these bytes."""
    return f'"{hashlib.sha256(body).hexdigest()}"'


def calls(records: list[Record]) -> list[tuple[int, str]]:
    """The seq and the function of each record."""
    return [(record["seq"], record["function"]) for record in records]
