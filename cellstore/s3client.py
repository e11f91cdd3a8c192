"""The SDK's clients of a bucket, set up for servers of every kind and for little work in a call."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import aioboto3  # type: ignore[import-untyped]
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from botocore.handlers import (  # type: ignore[import-untyped]
    add_expect_header,
    convert_body_to_file_like_object,
)

from cellstore.s3config import S3Config

# How often a call is sent in all, unless it may be sent only once.
ATTEMPTS = 3
_CONNECTIONS = 128


@contextlib.asynccontextmanager
async def clients(config: S3Config) -> AsyncIterator[tuple[Any, Any]]:
    """A client that sends each call once, and one that tries again, with jitter, what may pass."""
    session = AioSession()
    # Listings are read often, and parsing times takes the SDK most of it: leave them as text.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    _let_endpoints_be_cached(session)
    maker = aioboto3.Session(
        aws_access_key_id=config.access_key_id,
        aws_secret_access_key=config.secret_access_key,
        aws_session_token=config.session_token,
        botocore_session=session,
    )

    def client(attempts: int) -> Any:
        return maker.client(
            "s3",
            region_name=config.region,
            endpoint_url=config.endpoint,
            config=_client_config(config, attempts),
        )

    async with client(1) as once, client(ATTEMPTS) as steady:
        for events in (once.meta.events, steady.meta.events):
            _send_bodies_at_once(events)
        steady.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)
        yield once, steady


def _let_endpoints_be_cached(session: AioSession) -> None:
    """Take keys out of what the SDK caches endpoints by.

    It derives each call's endpoint from its parameters by rules, which is a quarter of the work of
    a call, and caches by all of them, though no rule looks at a key.
    """
    model = session.get_component("data_loader").load_service_model("s3", "service-2")
    for shape in model["shapes"].values():
        for member in shape.get("members", {}).values():
            if member.get("contextParam", {}).get("name") in {"Key", "Prefix"}:
                del member["contextParam"]


def _send_bodies_at_once(events: Any) -> None:
    """Let a PUT wait for no `100 Continue`, which would cost it a round trip more."""
    events.unregister("before-call.s3", add_expect_header)
    for operation in ("PutObject", "UploadPart"):
        event = f"before-parameter-build.s3.{operation}"
        events.unregister(event, convert_body_to_file_like_object)


def _client_config(config: S3Config, attempts: int) -> AioConfig:
    return AioConfig(
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=min(5.0, config.deadline),
        read_timeout=config.deadline,
        max_pool_connections=_CONNECTIONS,
        s3={"addressing_style": "auto" if config.endpoint is None else "path"},
        signature_version="s3v4",
        # Many servers of this protocol refuse the checksums that the SDK adds by itself.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # What follows saves time in each call.
        parameter_validation=False,
        disable_request_compression=True,
        user_agent="cellstore",
    )


def _add_content_md5(params: dict[str, Any], **_: object) -> None:
    """Old servers demand this header of a DeleteObjects; the SDK sends a newer checksum alone."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
