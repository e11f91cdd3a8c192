"""The object stores that contract suites run on: the fake, and S3 by two servers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from cellstore.objects import ObjectStore
from cellstore.s3 import S3Store
from cellstore.s3config import from_environment
from tests.fakes.bucket import Bucket, BucketClient
from tests.support import versitygw
from tests.support.moto import Moto, moto
from tests.support.versitygw import Versitygw

# Opens a store whose keys are below a prefix, for as long as the context lasts.
Opener = Callable[[str], AbstractAsyncContextManager[ObjectStore]]

NAMES = ["fake", "moto", "versitygw"]


@contextlib.contextmanager
def opener(name: str, directory: Path) -> Iterator[Opener]:
    """Start what is called `name` and make stores on it. Skips the test where it cannot be."""
    if name == "fake":
        yield _open_fake
    elif name == "moto":
        with moto() as server:
            yield s3_opener(server)
    elif versitygw.install() is None:
        pytest.skip(f"versitygw is not at {versitygw.binary()} and there is no go to build it with")
    else:
        with versitygw.versitygw(directory) as gateway:
            yield s3_opener(gateway)


def fake_bucket() -> Bucket:
    """A bucket in memory that keeps the machine's time. Needs a running loop."""
    return Bucket(time.time, asyncio.get_running_loop().call_later)  # noqa: TID251


@contextlib.asynccontextmanager
async def _open_fake(prefix: str) -> AsyncIterator[ObjectStore]:
    yield BucketClient(fake_bucket())


def s3_opener(server: Moto | Versitygw, endpoint: str | None = None) -> Opener:
    """Makes stores on a server's bucket, reached directly or through a proxy's address."""

    @contextlib.asynccontextmanager
    async def open_store(prefix: str) -> AsyncIterator[ObjectStore]:
        config = from_environment(f"{server.url}/{prefix}", server.environment(endpoint))
        async with S3Store.open(config) as store:
            yield store

    return open_store
