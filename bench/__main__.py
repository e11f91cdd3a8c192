"""`python -m bench`: every scenario, or those that are named, as one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from bench import acked, agent, apart, cells, cost, crowd, scenarios
from bench.client import load
from bench.figures import Figure
from bench.servers import Bench, disk_folder, file_system
from bench.table import as_json, table
from cellstore.settings import raise_file_limit
from tests.support.reference import binary

SCENARIOS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "append": scenarios.append,
    "append-long": scenarios.append_long,
    "runs": scenarios.runs,
    "apart": apart.apart,
    "blob": scenarios.blob,
    "read": scenarios.read,
    "agent": agent.agent,
    "memory": cells.memory,
    "wake": cells.wake,
    "bucket-cost": cost.cost,
    "bucket-load": crowd.crowd,
    "bucket-ack": acked.acked,
}


def _known(names: list[str] | None) -> list[str]:
    unknown = [name for name in names or () if name not in SCENARIOS]
    if unknown:
        raise typer.BadParameter(f"no scenario is called {', '.join(unknown)}")
    return names or []


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCENARIO]...", help=", ".join(SCENARIOS), callback=_known),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file too, as JSON.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Put the servers' data there; use a real disk.")
    ] = None,
    short: Annotated[
        bool | None,
        typer.Option(
            "--short/--long",
            help="The short form of scenarios that take minutes: for all unless some are named.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure this store, the reference server and the floors of both, side by side."""
    raise_file_limit()
    has_reference = binary().exists()
    if not has_reference:
        typer.echo(
            f"no reference server at {binary()}: `make interop` builds it. Only ours, and no agent."
        )
    figures: list[Figure] = []
    failures: list[str] = []
    with disk_folder(folder) as data, load() as client:
        typer.echo(f"data in {data} ({file_system(data)})", err=True)
        bench = Bench(data, client, has_reference, not names if short is None else short)
        for name in names or SCENARIOS:
            started = perf_counter()
            try:
                figures += SCENARIOS[name](bench)
            except (RuntimeError, OSError) as fault:
                # What the others found is worth having.
                failures.append(f"{name}: {fault}")
            typer.echo(f"{name}: {perf_counter() - started:.0f} s", err=True)
    typer.echo(table(figures))
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(figures), indent=1) + "\n")
    for failure in failures:
        typer.echo(f"not measured: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
