"""The least that HTTP costs: the node's own server and protocol, doing nothing with a request.

`python -m bench.floor PORT` answers `ok` to everything, once it has read the body.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from starlette.types import Receive, Scope, Send

from cellstore.server import Server, bind
from cellstore.settings import Settings

_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-length", b"2"), (b"content-type", b"text/plain; charset=utf-8")],
}
_BODY = {"type": "http.response.body", "body": b"ok"}


async def answer_ok(_: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application."""
    while (await receive()).get("more_body", False):
        pass
    await send(_START)
    await send(_BODY)


async def serve(port: int) -> None:
    """Serve on that port of 127.0.0.1 until killed."""
    settings = Settings(listen=f"127.0.0.1:{port}")
    await Server(answer_ok, settings).serve(sockets=[bind(settings)])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
