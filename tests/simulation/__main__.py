"""Runs many seeds and tells of those that fail: `python -m tests.simulation --seeds 100000`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.many import run_many
from tests.simulation.profiles import PROFILES
from tests.simulation.variants import VARIANTS


def main() -> int:
    """Returns 1 where a seed failed, or where a variant was asked for and none did."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--profile", choices=PROFILES)
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--lines", type=int, default=60, help="of the trace of a failed seed")
    parser.add_argument("--stop", type=int, default=5, help="after so many failed seeds")
    options = parser.parse_args()
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    done = failed = 0
    for result in run_many(
        options.first,
        options.seeds,
        profile=options.profile,
        variant=options.variant,
        workers=options.workers,
    ):
        done += 1
        counts.update(result.counts)
        if result.violation is not None:
            failed += 1
            print(result.tell(options.lines), flush=True)
            if failed >= options.stop or options.variant:
                break
        if done % 500 == 0:
            rate = done / (time.perf_counter() - began)
            print(f"{done} seeds, {rate:.0f} a second, {failed} failed", file=sys.stderr)
    secs = time.perf_counter() - began
    tally = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{done} seeds in {secs:.0f} s, {done / secs:.1f} a second, {failed} failed: {tally}")
    return int(bool(failed) != (options.variant is not None))


if __name__ == "__main__":
    sys.exit(main())
