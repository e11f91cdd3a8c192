"""The composition root: makes the parts of a node, joins them, runs them and takes them down."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from cellstore import __version__
from cellstore.auth import Tokens, tokens_from
from cellstore.clock import Clock, SystemClock, fresh_node_id
from cellstore.directory import DataDirectory
from cellstore.node import Node
from cellstore.parts import Parts, make_parts
from cellstore.server import BACKLOG, Server, acceptors, bind
from cellstore.settings import Settings

log = structlog.get_logger("cellstore.app")


# Threads for work on files; parsing and compressing have the loop's own, and never hold these up.
_files = ThreadPoolExecutor(max_workers=32, thread_name_prefix="files")


async def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Run a node until SIGTERM or SIGINT. `announce` is called with its URL once it serves.

    Raises StartRefused when a setting, the data directory or the address is at fault, and
    TimeoutError when cells could not be closed in time at the stop.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _note_stop, stop, number)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32, "work"))
    tokens = tokens_from(settings.token, settings.token_file)
    directory = DataDirectory(settings.data_dir)
    directory.acquire()
    try:
        node_id = settings.node_id or directory.node_id(fresh_node_id())
        listener = bind(settings)
        try:
            async with make_parts(settings, directory, node_id, tokens, _offload) as parts:
                node, api = parts.node, parts.api
                server = Server(api, settings)
                address = _url(listener.getsockname())
                # What was made up to here stays; looking through it again and again is in vain.
                gc.freeze()
                gc.set_threshold(10_000, 20, 50)
                listener.listen(BACKLOG)
                api.ready = True
                log.info(
                    "node started",
                    node=node_id,
                    version=__version__,
                    address=address,
                    data_dir=str(settings.data_dir),
                    runs=len(parts.runs),
                    bucket=settings.bucket,
                    max_open_cells=settings.max_open_cells,
                )
                announce(address)
                async with _background(
                    _stop_server(stop, parts, server),
                    *_housekeeping(settings, node, server, tokens),
                ):
                    await server.serve(sockets=acceptors(listener))
        finally:
            listener.close()
    finally:
        directory.release()
    log.info("node stopped", node=node_id)


async def _offload(work: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(_files, work, *args)


def _housekeeping(
    settings: Settings, node: Node, server: Server, tokens: Tokens
) -> list[Coroutine[Any, Any, None]]:
    clock = SystemClock()
    interval = min(1.0, settings.idle_secs / 4, settings.client_timeout_secs / 4)
    return [
        _every(interval, clock, server.sweep),
        _every(interval, clock, lambda _: tokens.refresh()),
        _hibernate(interval, node),
    ]


@contextlib.asynccontextmanager
async def _background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run works beside the body, and end them with it."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _every(interval: float, clock: Clock, work: Callable[[float], None]) -> None:
    before = clock.monotonic()
    while True:
        await asyncio.sleep(interval)
        now = clock.monotonic()
        try:
            work(now - before)
        except Exception:
            # One bad round must not end all later ones.
            log.exception("housekeeping failed")
        before = now


async def _hibernate(interval: float, node: Node) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            if await node.hibernate_idle():
                await asyncio.to_thread(_return_memory)
        except Exception:
            log.exception("hibernating failed")


def _return_memory() -> None:
    """Have the allocator return what closed cells have freed; by itself it keeps most of that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _note_stop(stop: asyncio.Event, number: signal.Signals) -> None:
    log.info("node stopping", signal=number.name)
    stop.set()


async def _stop_server(stop: asyncio.Event, parts: Parts, server: Server) -> None:
    await stop.wait()
    parts.api.ready = False
    parts.stopping()
    server.should_exit = True


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
