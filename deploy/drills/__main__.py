"""Runs drills: `python -m deploy.drills [NAME ...]`; without names, all of them."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.drills import chaos, load, outage, rolling, takeover, term, writers
from deploy.drills.broken import FAULTS
from deploy.drills.drill import Drill, Options
from deploy.drills.nodes import DrillFailed, wall

DRILLS: dict[str, Drill] = {
    "chaos": chaos.drill,
    "rolling": rolling.drill,
    "term": term.drill,
    "takeover": takeover.drill,
    "writers": writers.drill,
    "outage": outage.drill,
    "load": load.drill,
}


def main() -> int:
    given = _arguments()
    if given.list:
        for name in DRILLS:
            print(f"{name:10} {_purpose(name)}")
        return 0
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    acks = ("bucket", "disk") if given.ack == "both" else (given.ack,)
    failed = []
    for name in given.names or DRILLS:
        folder = Path(tempfile.mkdtemp(prefix=f"drill-{name}-", dir=given.folder))
        print(f"{name}: {_purpose(name)} (seed {seed})", flush=True)
        began = wall()
        try:
            DRILLS[name](Options(folder, seed, given.short, acks, given.broken))
        except (DrillFailed, TimeoutError) as fault:
            print(f"{name}: FAILED after {wall() - began:.0f} s, seed {seed}, see {folder}")
            print(f"  {fault}", flush=True)
            failed.append(name)
        else:
            print(f"{name}: held, {wall() - began:.0f} s", flush=True)
            if not given.keep:
                shutil.rmtree(folder)
    return 1 if failed else 0


def _purpose(name: str) -> str:
    text = sys.modules[DRILLS[name].__module__].__doc__ or ""
    return text.strip().partition("\n")[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.drills", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="drills to run; default: all")
    parser.add_argument("--list", action="store_true", help="list the drills and exit")
    parser.add_argument("--seed", type=int, help="draw the same chances again")
    parser.add_argument("--short", action="store_true", help="less of everything, in a minute")
    parser.add_argument("--ack", choices=("bucket", "disk", "both"), default="both")
    parser.add_argument("--broken", choices=sorted(FAULTS), help="start nodes that have this fault")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep logs, books and disks")
    given = parser.parse_args()
    for name in given.names:
        if name not in DRILLS:
            parser.error(f"no such drill: {name}; there are {', '.join(DRILLS)}")
    return given


if __name__ == "__main__":
    sys.exit(main())
