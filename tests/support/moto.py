"""An S3 server in a thread of this process: moto, which keeps everything in memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import httpx
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

BUCKET = "journals"


class Moto:
    """Where the server is, and what a node must be told to reach it."""

    bucket = BUCKET
    url = f"s3://{BUCKET}"

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What a node must be told to reach it, directly or (`endpoint`) through a proxy."""
        return {
            "CHIDORI_RUN_STORE_ENDPOINT": endpoint or self.endpoint,
            "CHIDORI_RUN_STORE_REGION": "us-east-1",
            "CHIDORI_RUN_STORE_ACCESS_KEY_ID": "AKIDTESTMOTO",
            "CHIDORI_RUN_STORE_SECRET_ACCESS_KEY": "moto-secret-of-tests",
        }


@contextlib.contextmanager
def moto() -> Iterator[Moto]:
    """A server with an empty bucket. All servers of one process share their buckets."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        moto = Moto(port)
        httpx.post(f"{moto.endpoint}/moto-api/reset").raise_for_status()
        httpx.put(f"{moto.endpoint}/{BUCKET}").raise_for_status()
        yield moto
    finally:
        server.stop()
