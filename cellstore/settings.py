"""Every setting of a node, in one frozen model. `docs/settings.md` describes the same."""

from __future__ import annotations

import ipaddress
import re
import resource
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cellstore.errors import StartRefused
from cellstore.names import is_component

MIB = 1024 * 1024

# Descriptors that an open cell takes: database, log, index.
_CELL_DESCRIPTORS = 3
# For the loop, the listener, files being made, probes.
_OTHER_DESCRIPTORS = 48
_DEFAULT_OPEN_CELLS = 2000


class Settings(BaseModel):
    """What a node is told at its start; nothing in it changes afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: Annotated[str, Field(description="Address to listen on, HOST:PORT.")] = "127.0.0.1:9700"
    data_dir: Annotated[
        Path, Field(description="Directory for the cells and the node's identity.")
    ] = Path(".chidori/cellstore")
    node_id: Annotated[
        str | None,
        Field(
            description="Name of this node; by default made once and kept in the data directory."
        ),
    ] = None
    bucket: Annotated[
        str | None,
        Field(
            description="Bucket that cells replicate to, s3://BUCKET or s3://BUCKET/PREFIX; "
            "without one they are on this disk alone."
        ),
    ] = None
    advertise: Annotated[
        str | None,
        Field(description="URL of this node, told to clients that another node refuses."),
    ] = None
    lease_secs: Annotated[
        float,
        Field(
            ge=3,
            le=3600,
            description="How long a claim of a cell lasts; another node takes over after that.",
        ),
    ] = 30.0
    sync_secs: Annotated[
        float, Field(gt=0, description="How often the changes of a cell go to the bucket.")
    ] = 2.0
    ack: Annotated[
        Literal["disk", "bucket"],
        Field(description="When a write is acknowledged: on this disk, or in the bucket."),
    ] = "disk"
    max_lag_secs: Annotated[
        float | None,
        Field(
            gt=0,
            description="Refuse writes while the oldest unpublished one is older; "
            "by default as long as the lease.",
        ),
    ] = None
    max_disk_mib: Annotated[
        int | None,
        Field(
            ge=1,
            description="What the copies of cells may take on this disk, in MiB; those that are "
            "in the bucket and not in use are discarded, longest unused first.",
        ),
    ] = None
    adopt: Annotated[
        bool,
        Field(
            description="Take over a prefix that the reference server wrote; stop its nodes first."
        ),
    ] = False
    idle_secs: Annotated[
        float, Field(gt=0, description="Close cells that nobody used for this many seconds.")
    ] = 300.0
    max_open_cells: Annotated[
        int,
        Field(
            ge=1,
            description="Cells open at once, least recently used closed first; "
            "by default what the limit on open files allows, at most 2000.",
        ),
    ] = _DEFAULT_OPEN_CELLS
    token: Annotated[
        str | None,
        Field(
            repr=False,
            description="Bearer token that requests must carry; only from the environment.",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Field(description="File of valid bearer tokens, one a line, read again when it changes."),
    ] = None
    insecure_no_auth: Annotated[
        bool, Field(description="Allow listening beyond loopback without a token.")
    ] = False
    max_body_mib: Annotated[
        int, Field(ge=1, le=900, description="Largest request body accepted, in MiB.")
    ] = 256
    max_memory_mib: Annotated[
        int,
        Field(
            ge=16,
            description="Memory that bodies and answers of requests in flight may hold, in MiB; "
            "further large ones wait.",
        ),
    ] = 1024
    client_timeout_secs: Annotated[
        float,
        Field(
            gt=0,
            description="Seconds a client may keep the node waiting in one request, "
            "plus one for every 64 KiB it moves.",
        ),
    ] = 30.0
    keep_alive_secs: Annotated[
        int, Field(ge=1, description="Seconds an idle connection is kept open.")
    ] = 120
    drain_secs: Annotated[
        int, Field(gt=0, description="Seconds that requests in flight are given at a stop.")
    ] = 20
    log_format: Annotated[
        Literal["auto", "text", "json"],
        Field(
            description="How log lines look: text on a terminal and JSON elsewhere, or one of both."
        ),
    ] = "auto"

    @field_validator("listen")
    @classmethod
    def _listen_is_an_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError("it is not HOST:PORT, for example 127.0.0.1:9700 or [::1]:9700")
        return value

    @field_validator("node_id")
    @classmethod
    def _node_id_is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not is_component(value.encode("utf-8", "surrogateescape")):
            raise ValueError("use 1 to 200 of A-Z a-z 0-9 . _ @ - and neither `.` nor `..`")
        return value

    @field_validator("advertise")
    @classmethod
    def _advertise_is_a_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", value):
            raise ValueError("it is not http://HOST[:PORT] or https://HOST[:PORT]")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _bucket_settings_need_one(self) -> Settings:
        if self.bucket is None:
            for name in (
                "advertise",
                "lease_secs",
                "sync_secs",
                "ack",
                "max_lag_secs",
                "max_disk_mib",
                "adopt",
            ):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"{flag(name)} is about nodes that share a bucket; give --bucket"
                    )
        return self

    @model_validator(mode="after")
    def _outsiders_need_a_token(self) -> Settings:
        if self.token is not None and self.token_file is not None:
            raise ValueError(
                "CHIDORI_RUN_STORE_TOKEN and --token-file are both set; give the token in one place"
            )
        has_token = self.token is not None or self.token_file is not None
        if not (has_token or self.insecure_no_auth or _is_loopback(self.host)):
            raise ValueError(
                f"--listen {self.listen} is open to other machines and no token is set; "
                "set CHIDORI_RUN_STORE_TOKEN or --token-file, or give --insecure-no-auth"
            )
        return self

    @property
    def lag_allowed(self) -> float:
        """Seconds that the oldest unpublished write may be old."""
        return self.lease_secs if self.max_lag_secs is None else self.max_lag_secs

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])


def load(**values: object) -> Settings:
    """Make the settings from what was given (None: not given). Raises StartRefused saying which
    one is wrong and why."""
    given = {name: value for name, value in values.items() if value is not None}
    affordable = _affordable_open_cells()
    given.setdefault("max_open_cells", min(_DEFAULT_OPEN_CELLS, affordable))
    try:
        settings = Settings.model_validate(given)
    except ValidationError as fault:
        raise StartRefused("\n".join(_explain(error) for error in fault.errors())) from None

    if settings.max_open_cells > affordable:
        raise StartRefused(
            f"--max-open-cells {settings.max_open_cells}: the limit on open files of this process "
            f"allows {affordable}; raise it (ulimit -n) or lower the setting"
        )
    return settings


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "CHIDORI_RUN_STORE_TOKEN" if name == "token" else f"--{name.replace('_', '-')}"


def _explain(error: object) -> str:
    assert isinstance(error, dict)
    message = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return message
    return f"{flag(str(error['loc'][0]))} {error['input']}: {message}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def raise_file_limit() -> None:
    """Take as many descriptors as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _affordable_open_cells() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 10**6
    # A quarter is kept for connections and everything else.
    return max(1, soft * 3 // 4 // _CELL_DESCRIPTORS)


def affordable_connections() -> int:
    """How many connections the limit on open files leaves room for beside the cells."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 10**6 if soft == resource.RLIM_INFINITY else max(8, soft // 4 - _OTHER_DESCRIPTORS)
