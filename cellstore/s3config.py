"""Where a bucket is and who we are there, from its URL and the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cellstore.errors import StartRefused


@dataclass(frozen=True, slots=True)
class S3Config:
    """Where the bucket is and who we are there.

    `prefix` is empty or ends with a slash. Without an access key the SDK looks for credentials
    where it always does. `deadline` is the seconds that one attempt of a call may take, beside what
    its body needs.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    deadline: float = 10.0


def from_environment(url: str, environ: Mapping[str, str]) -> S3Config:
    """The configuration for `s3://BUCKET[/PREFIX]`. Raises StartRefused saying what is wrong."""
    bucket, prefix = _parse(url)
    endpoint = environ.get("CHIDORI_RUN_STORE_ENDPOINT") or None
    if endpoint is not None and not re.fullmatch(r"https?://[^/@?#\s]+/?", endpoint):
        shown = "" if "@" in endpoint else f" {endpoint}"
        raise StartRefused(
            f"CHIDORI_RUN_STORE_ENDPOINT{shown}: it is not http://HOST[:PORT] or https://HOST[:PORT]"
        )
    region = environ.get("CHIDORI_RUN_STORE_REGION") or environ.get("AWS_REGION") or "us-east-1"
    return S3Config(bucket, prefix, endpoint, region, *_credentials(environ))


def _parse(url: str) -> tuple[str, str]:
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise StartRefused("the bucket's URL holds credentials; give them in the environment")
    if not url.startswith("s3://") or re.search(r"[?#\s%\\]", url):
        raise StartRefused(f"{url}: a bucket is given as s3://BUCKET or s3://BUCKET/PREFIX")
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]", bucket):
        raise StartRefused(
            f"{url}: a bucket's name is 3 to 63 of A-Z a-z 0-9 . _ - "
            "and starts and ends with a letter or a digit"
        )
    prefix = prefix.strip("/")
    if any(part in {"", ".", ".."} for part in prefix.split("/")) and prefix:
        raise StartRefused(f"{url}: no part of a prefix may be empty, `.` or `..`")
    return bucket, f"{prefix}/" if prefix else ""


def _credentials(environ: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    ours = ("CHIDORI_RUN_STORE_ACCESS_KEY_ID", "CHIDORI_RUN_STORE_SECRET_ACCESS_KEY")
    key, secret = (environ.get(name) or None for name in ours)
    if (key is None) != (secret is None):
        missing = ours[0] if key is None else ours[1]
        raise StartRefused(f"{missing} is not set, but its counterpart is; set both or neither")
    if key is not None:
        # A session token in the environment belongs to the other keys there.
        return key, secret, None
    key, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return key, secret, environ.get("AWS_SESSION_TOKEN") or None
    return None, None, None
