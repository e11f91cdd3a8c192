"""Many runs, shared out among worker processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.run import Result, run_seed
from tests.simulation.variants import VARIANTS

# Runs that a worker does before it answers, and before it frees what they left: cheaper now and
# then than all the time.
_PART = 25

# The first seed, how many, the profile and the variant.
Job = tuple[int, int, str | None, str | None]


def profile_of(seed: int) -> Profile:
    """The profile of a seed where none was asked for: all of them in turn."""
    names = list(PROFILES)
    return PROFILES[names[seed % len(names)]]


def run_part(job: Job) -> list[Result]:
    """Run some seeds, up to the first that fails. Traces of others are left out."""
    first, count, profile, variant = job
    warnings.simplefilter("ignore", ResourceWarning)
    results = []
    gc.disable()
    try:
        for seed in range(first, first + count):
            chosen = profile_of(seed) if profile is None else PROFILES[profile]
            if variant is None:
                result = run_seed(seed, chosen)
            else:
                with VARIANTS[variant].broken():
                    result = run_seed(seed, chosen)
            results.append(result if result.violation else replace(result, trace=[]))
            if result.violation and variant is not None:
                break
            if seed % _PART == 0:
                gc.collect()
    finally:
        gc.enable()
        gc.collect()
    return results


def run_many(
    first: int,
    count: int,
    *,
    profile: str | None = None,
    variant: str | None = None,
    workers: int | None = None,
) -> Iterator[Result]:
    """Run seeds on all processors. Results come in the order of the seeds."""
    jobs = [
        (start, min(_PART, first + count - start), profile, variant)
        for start in range(first, first + count, _PART)
    ]
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers or os.cpu_count(), maxtasksperchild=40) as pool:
        for results in pool.imap(run_part, jobs):
            yield from results
