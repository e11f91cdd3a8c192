"""Doing several things at once, where one that fails ends them all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(*works: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all works, in order. Where one raises, none of the others goes on."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
