"""The object store in an S3 bucket, through aioboto3.

A conditional put is handed to the SDK with its retries off, and only two answers say anything:
success, and 412. Whatever else comes back, or does not, leaves the outcome unknown, because HTTP
clients re-send a PUT when its connection breaks, and a put whose time ran out may still
land. Error texts hold the operation, the key, and S3's status and code: no message of the server,
which may quote the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any

from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from cellstore.objects import Got, Listed, Listing, Outcome, Put, StoreFault
from cellstore.s3client import ATTEMPTS, clients
from cellstore.s3config import S3Config

MIB = 1024 * 1024

# A file above this size is uploaded in parts, this many at once, and each of them is in memory.
_SINGLE_PUT = 32 * MIB
_PART = 16 * MIB
_PARTS_AT_ONCE = 3
# aiohttp warns of larger bodies that are not a stream, since one write of them holds the loop up.
_PLAIN_BODY = MIB
_CHUNK = MIB
_DELETE_BATCH = 1000
# Bytes a second that a body is given: slower transfers are broken off.
_SLOWEST = 256 * 1024


class S3Store:
    """A bucket below a prefix. Made by `open`."""

    def __init__(self, config: S3Config, once: Any, steady: Any) -> None:
        self._config = config
        self._once = once
        self._steady = steady

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, config: S3Config) -> AsyncIterator[S3Store]:
        """A store whose connections are closed at the end. Sends nothing by itself."""
        async with clients(config) as (once, steady):
            yield cls(config, once, steady)

    async def create(self, key: str, data: bytes) -> Put:
        return await self._conditional(f"create {key}", key, data, None)

    async def replace(self, key: str, data: bytes, etag: str | None) -> Put:
        return await self._conditional(f"replace {key}", key, data, etag)

    async def _conditional(self, what: str, key: str, data: bytes, etag: str | None) -> Put:
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            async with asyncio.timeout(self._seconds(len(data), attempts=1)):
                answer = await self._once.put_object(
                    **self._named(key), Body=_body(data), **condition
                )
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status == 412 or (etag is not None and _is_missing(error)):
                return Put(Outcome.EXISTS, _date(error.response))
            return Put(Outcome.UNKNOWN, _date(error.response), f"{what}: {_reason(error)}")
        except Exception as error:  # noqa: BLE001 - whatever went wrong, it may have been written
            return Put(Outcome.UNKNOWN, None, f"{what}: {_reason(error)}")
        # A redirect is followed, perhaps to a page that welcomes everything.
        if not answer.get("ETag"):
            return Put(Outcome.UNKNOWN, None, f"{what}: the answer is not an object store's")
        return Put(Outcome.CREATED, _date(answer), "", answer["ETag"])

    async def put(self, key: str, data: bytes | Path) -> None:
        if isinstance(data, Path):
            size = (await asyncio.to_thread(data.stat)).st_size
            if size > _SINGLE_PUT:
                return await self._put_parts(key, data, size)
            data = await asyncio.to_thread(data.read_bytes)
        async with _faults(f"put {key}", self._seconds(len(data))):
            await self._steady.put_object(**self._named(key), Body=_body(data))
        return None

    async def _put_parts(self, key: str, path: Path, size: int) -> None:
        what, named = f"put {key}", self._named(key)
        async with _faults(what, self._seconds()):
            named["UploadId"] = (await self._steady.create_multipart_upload(**named))["UploadId"]
        try:
            parts = await self._send_parts(what, named, path, size)
            async with _faults(what, self._seconds(size)):
                await self._steady.complete_multipart_upload(
                    **named, MultipartUpload={"Parts": parts}
                )
        except BaseException:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(self._config.deadline):
                    await self._steady.abort_multipart_upload(**named)
            raise

    async def _send_parts(
        self, what: str, named: dict[str, Any], path: Path, size: int
    ) -> list[dict[str, object]]:
        places = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def send(number: int, offset: int) -> dict[str, object]:
            async with places:
                data = await asyncio.to_thread(_read_part, path, offset, min(_PART, size - offset))
                async with _faults(f"{what} part {number}", self._seconds(len(data))):
                    answer = await self._steady.upload_part(
                        **named, PartNumber=number, Body=_body(data)
                    )
                    return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            async with asyncio.TaskGroup() as group:
                offsets = enumerate(range(0, size, _PART), 1)
                tasks = [group.create_task(send(*numbered)) for numbered in offsets]
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    async def get(self, key: str) -> Got | None:
        buffer = io.BytesIO()
        answer = await self._download(key, buffer)
        if answer is None:
            return None
        return Got(buffer.getvalue(), _date(answer), answer["ETag"])

    async def fetch(self, key: str, path: Path) -> bool:
        with await asyncio.to_thread(path.open, "xb") as file:
            try:
                found = await self._download(key, file) is not None
            except BaseException:
                path.unlink()
                raise
        if not found:
            path.unlink()
        return found

    async def _download(self, key: str, file: IO[bytes]) -> Any | None:
        """Write an object into `file`; its answer, None where there is no such object."""
        for attempt in range(1, ATTEMPTS + 1):
            async with _faults(f"get {key}", self._seconds()) as timeout:
                try:
                    answer = await self._steady.get_object(**self._named(key))
                except ClientError as error:
                    if _is_missing(error):
                        return None
                    raise
                if not answer.get("ETag"):
                    raise StoreFault("the answer is not an object store's")
                size = int(answer["ContentLength"])
                timeout.reschedule(asyncio.get_running_loop().time() + self._seconds(size))
                # The SDK does not retry what breaks off in the middle of a body.
                if await _copy(answer["Body"], file, size, last=attempt == ATTEMPTS):
                    return answer
            await asyncio.to_thread(_empty, file)
        raise AssertionError("the last attempt returns or raises")

    async def folders(self, prefix: str) -> list[str]:
        names: set[str] = set()
        skipped = len(self._config.prefix) + len(prefix)
        async for page in self._pages(f"list {prefix}", prefix, {"Delimiter": "/"}):
            names.update(found["Prefix"][skipped:-1] for found in page.get("CommonPrefixes", ()))
        return sorted(names)

    async def list(self, prefix: str, after: str = "") -> Listing:
        entries: list[Listed] = []
        date = None
        start = {"StartAfter": self._config.prefix + after} if after else {}
        async for page in self._pages(f"list {prefix}", prefix, start):
            found = page.get("Contents", ())
            if found or not entries:
                date = _date(page)
            entries += map(self._listed, found)
        for i in range(1, len(entries)):
            if entries[i - 1].key >= entries[i].key:
                raise StoreFault(f"list {prefix}: the answer is not in the order of the keys")
        return Listing(entries, date)

    async def _pages(
        self, what: str, prefix: str, parameters: Mapping[str, str]
    ) -> AsyncIterator[Any]:
        token: dict[str, str] = {}
        while True:
            async with _faults(what, self._seconds()):
                page = await self._steady.list_objects_v2(
                    Bucket=self._config.bucket,
                    Prefix=self._config.prefix + prefix,
                    **parameters,
                    **token,
                )
            if "IsTruncated" not in page:
                raise StoreFault(f"{what}: the answer is not an object store's")
            yield page
            if not page["IsTruncated"]:
                return
            following = {"ContinuationToken": page.get("NextContinuationToken") or ""}
            if following == token or not following["ContinuationToken"]:
                raise StoreFault(f"{what}: the answer is cut off and does not say how to go on")
            token = following

    async def delete(self, keys: Sequence[str]) -> None:
        remaining = iter(keys)
        while batch := list(islice(remaining, _DELETE_BATCH)):
            what = f"delete {batch[0]}" + (f" and {len(batch) - 1} more" if batch[1:] else "")
            objects = [{"Key": self._config.prefix + key} for key in batch]
            async with _faults(what, self._seconds()):
                answer = await self._steady.delete_objects(
                    Bucket=self._config.bucket, Delete={"Objects": objects, "Quiet": True}
                )
            failed = [e for e in answer.get("Errors", ()) if e.get("Code") != "NoSuchKey"]
            if failed:
                key = str(failed[0].get("Key", "")).removeprefix(self._config.prefix)
                code = _code(failed[0].get("Code"))
                raise StoreFault(f"delete {key}: {code} ({len(failed)} of {len(batch)} failed)")

    def _named(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._config.bucket, "Key": self._config.prefix + key}

    def _listed(self, found: Mapping[str, Any]) -> Listed:
        modified = datetime.fromisoformat(found["LastModified"]).timestamp()
        return Listed(found["Key"][len(self._config.prefix) :], modified, int(found["Size"]))

    def _seconds(self, size: int = 0, attempts: int = ATTEMPTS) -> float:
        return attempts * (self._config.deadline + size / _SLOWEST)


def _body(data: bytes) -> bytes | IO[bytes]:
    return data if len(data) <= _PLAIN_BODY else io.BytesIO(data)


def _read_part(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) != size:
        raise OSError(f"{path.name} became shorter while it was uploaded")
    return data


async def _copy(body: Any, file: IO[bytes], size: int, *, last: bool) -> bool:
    """Write a body into a file; False where it broke off, unless this was the last attempt."""
    written = 0
    async with body:
        while True:
            try:
                chunk = await body.content.read(_CHUNK)
            except Exception:
                if last:
                    raise
                return False
            if not chunk:
                break
            written += len(chunk)
            if isinstance(file, io.BytesIO):
                file.write(chunk)
            else:
                await asyncio.to_thread(file.write, chunk)
    if written != size and last:
        raise StoreFault(f"{written} bytes came of {size}")
    return written == size


def _empty(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()


@contextlib.asynccontextmanager
async def _faults(what: str, seconds: float) -> AsyncIterator[asyncio.Timeout]:
    """A deadline, and StoreFault for all that goes wrong except with a local file."""
    try:
        async with asyncio.timeout(seconds) as timeout:
            yield timeout
    except OSError as error:
        if not isinstance(error, ConnectionError | TimeoutError):
            raise
        raise StoreFault(f"{what}: {_reason(error)}") from None
    except Exception as error:  # noqa: BLE001 - told without what it may quote
        raise StoreFault(f"{what}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """What went wrong, in words that cannot hold a secret or an object's content."""
    if isinstance(error, StoreFault):
        return str(error)
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "no status")
        return f"{status} {_code(error.response.get('Error', {}).get('Code'))}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    inner = getattr(error, "kwargs", {}).get("error")
    number = inner.errno if isinstance(inner, OSError) else None
    if number is None:
        return type(error).__name__
    # Numbers of the resolver are below zero.
    detail = os.strerror(number) if number > 0 else "the host's name is not known"
    return f"{type(error).__name__}, {detail}"


def _code(value: object) -> str:
    code = str(value)
    return code if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", code) else "unknown error"


def _is_missing(error: ClientError) -> bool:
    """Whether the answer says that there is no such object, and not something else of 404."""
    return bool(error.response.get("Error", {}).get("Code") == "NoSuchKey")


def _date(answer: Mapping[str, Any]) -> float | None:
    """When the server answered, by its own clock, in seconds since 1970."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None
