"""The command line: `cellstore serve`."""

from __future__ import annotations

import asyncio
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from cellstore import __version__, logs, settings
from cellstore.app import serve as run_node
from cellstore.clock import fresh_id
from cellstore.directory import DataDirectory
from cellstore.errors import StartRefused
from cellstore.identity import declare
from cellstore.settings import Settings

DEFAULTS: dict[str, Any] = {name: field.default for name, field in Settings.model_fields.items()}


class Moved(StrEnum):
    """What happened to a data directory."""

    MOVED = "moved"
    COPIED = "copied"


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="A self-hosted server that keeps the durable state of agent runs.",
)


def _option(name: str) -> Any:
    """The command-line option of a setting; its help is the setting's description."""
    field = Settings.model_fields[name]
    return typer.Option(
        settings.flag(name), help=field.description, envvar=f"CELLSTORE_{name.upper()}"
    )


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"cellstore {__version__}")
        raise typer.Exit


@app.command()
def serve(
    listen: Annotated[str, _option("listen")] = DEFAULTS["listen"],
    data_dir: Annotated[Path, _option("data_dir")] = DEFAULTS["data_dir"],
    node_id: Annotated[str | None, _option("node_id")] = None,
    bucket: Annotated[str | None, _option("bucket")] = None,
    advertise: Annotated[str | None, _option("advertise")] = None,
    lease_secs: Annotated[float, _option("lease_secs")] = DEFAULTS["lease_secs"],
    sync_secs: Annotated[float, _option("sync_secs")] = DEFAULTS["sync_secs"],
    ack: Annotated[str, _option("ack")] = DEFAULTS["ack"],
    max_lag_secs: Annotated[float | None, _option("max_lag_secs")] = None,
    max_disk_mib: Annotated[int | None, _option("max_disk_mib")] = None,
    adopt: Annotated[bool, _option("adopt")] = DEFAULTS["adopt"],
    idle_secs: Annotated[float, _option("idle_secs")] = DEFAULTS["idle_secs"],
    max_open_cells: Annotated[int | None, _option("max_open_cells")] = None,
    token_file: Annotated[Path | None, _option("token_file")] = None,
    insecure_no_auth: Annotated[bool, _option("insecure_no_auth")] = DEFAULTS["insecure_no_auth"],
    max_body_mib: Annotated[int, _option("max_body_mib")] = DEFAULTS["max_body_mib"],
    max_memory_mib: Annotated[int, _option("max_memory_mib")] = DEFAULTS["max_memory_mib"],
    client_timeout_secs: Annotated[float, _option("client_timeout_secs")] = DEFAULTS[
        "client_timeout_secs"
    ],
    keep_alive_secs: Annotated[int, _option("keep_alive_secs")] = DEFAULTS["keep_alive_secs"],
    drain_secs: Annotated[int, _option("drain_secs")] = DEFAULTS["drain_secs"],
    log_format: Annotated[str, _option("log_format")] = DEFAULTS["log_format"],
) -> None:
    """Run a node until SIGTERM or SIGINT.

    The bearer token that clients must send comes from the environment variable
    CHIDORI_RUN_STORE_TOKEN, or from the file that --token-file names. The bucket's endpoint,
    region and credentials come from CHIDORI_RUN_STORE_ENDPOINT, _REGION, _ACCESS_KEY_ID and
    _SECRET_ACCESS_KEY, or from wherever the AWS SDK finds them.
    """
    given = dict(locals())
    settings.raise_file_limit()
    try:
        chosen = settings.load(token=os.environ.get("CHIDORI_RUN_STORE_TOKEN"), **given)
        logs.configure(chosen.log_format)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_node(chosen, _announce))
    except TimeoutError:
        typer.echo("cellstore: some cells could not be closed in time", err=True)
        # Their threads are still at work, and leaving in order would wait for them.
        os._exit(1)
    except StartRefused as reason:
        typer.echo(f"cellstore: {reason}", err=True)
        raise typer.Exit(1) from None


@app.command()
def identity(
    what: Annotated[
        Moved, typer.Argument(help="moved: the original is gone. copied: it may be used again.")
    ],
    data_dir: Annotated[Path, _option("data_dir")] = DEFAULTS["data_dir"],
) -> None:
    """Say that a data directory was moved or copied, so that its node may start."""
    directory = DataDirectory(data_dir)
    try:
        directory.acquire()
        try:
            disk = declare(directory, what.value, fresh_id())
        finally:
            directory.release()
    except StartRefused as reason:
        typer.echo(f"cellstore: {reason}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{data_dir} has the disk id {disk}")


def _announce(url: str) -> None:
    print(f'Point the agent at it:  export CHIDORI_RUN_STORE="{url}"', flush=True)


def main() -> None:
    app()
