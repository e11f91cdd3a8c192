"""Many runs, shared out among worker processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.pool import Pool

from tests.simulation import run
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.run import Result, run_seed
from tests.simulation.variants import VARIANTS

# Runs that a worker does before it answers, and before it frees what they left: cheaper now and
# then than all the time.
_PART = 25

# With these set, a process that is started is measured.
_MEASURED = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")

# The first seed, how many, the profile and the variant.
Job = tuple[int, int, str | None, str | None]


# A run of many minutes costs as much as five others.
_LONG = "long"
_LONG_EVERY = 50


def profile_of(seed: int) -> Profile:
    """The profile of a seed where none was asked for: all of them in turn, the long one seldom."""
    if seed % _LONG_EVERY == _LONG_EVERY - 1:
        return PROFILES[_LONG]
    names = [name for name in PROFILES if name != _LONG]
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
    with worker_pool(workers) as pool:
        for results in pool.imap(run_part, jobs):
            yield from results


@contextmanager
def worker_pool(workers: int | None = None) -> Iterator[Pool]:
    """Processes that run seeds. What they leave behind when they are stopped is cleared away.

    They are not measured for coverage, which would take as long again; scenarios are.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="cellstore-", dir=run.folder()) as folder:
        measured = {name: os.environ.pop(name) for name in _MEASURED if name in os.environ}
        try:
            pool = context.Pool(workers, run.use_folder, (folder,), maxtasksperchild=400)
        finally:
            os.environ.update(measured)
        with pool:
            yield pool
