"""A connection that is handed its bytes in one piece, as no socket promises to do."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from cellstore.connection import Connection


async def test_a_refused_request_does_not_reach_its_end() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((await receive())["type"])

    config = uvicorn.Config(app, lifespan="off", ws="none", proxy_headers=False, log_config=None)
    transport = Mock(spec=asyncio.Transport)
    transport.get_extra_info.return_value = None
    connection = Connection(config, ServerState(), {}, asyncio.get_running_loop())
    connection.connection_made(transport)
    trailers = b"".join(b"x-%d: %s\r\n" % (number, b"y" * 1000) for number in range(100))
    connection.data_received(
        b"PUT /runs/a/blobs/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n0\r\n" + trailers + b"\r\n"
    )
    await asyncio.gather(*connection.tasks)
    assert seen == ["http.disconnect"]
    assert transport.write.call_args_list[0].args[0].startswith(b"HTTP/1.1 431 ")
