"""The bound on memory: who waits, who passes, who gives up."""

from __future__ import annotations

import asyncio

import pytest

from cellstore.errors import Unavailable
from cellstore.memory import SMALL, UNCOUNTED, MemoryBudget

MIB = 1024 * 1024


async def test_requests_within_the_bound_do_not_wait() -> None:
    budget = MemoryBudget(80 * MIB, patience=10)
    await budget.take(30 * MIB)
    await budget.take(30 * MIB)
    assert budget.held == 60 * MIB
    budget.give(30 * MIB)
    budget.give(30 * MIB)
    assert budget.held == 0


async def test_large_ones_wait_their_turn_and_small_ones_pass() -> None:
    budget = MemoryBudget(80 * MIB, patience=10)
    await budget.take(60 * MIB)
    first = asyncio.create_task(budget.take(20 * MIB))
    second = asyncio.create_task(budget.take(5 * MIB))
    await asyncio.sleep(0)
    await budget.take(SMALL)
    await budget.take(UNCOUNTED)
    assert not first.done()
    # It would fit, but it came later.
    assert not second.done()
    budget.give(60 * MIB)
    await first
    await second
    assert budget.held == 25 * MIB + SMALL


async def test_more_than_everything_is_let_in_alone() -> None:
    budget = MemoryBudget(80 * MIB, patience=10)
    await budget.take(2 * MIB)
    giant = asyncio.create_task(budget.take(1000 * MIB))
    await asyncio.sleep(0)
    assert not giant.done()
    budget.give(2 * MIB)
    await giant
    assert budget.held == 70 * MIB
    budget.give(1000 * MIB)
    assert budget.held == 0


async def test_waiting_ends() -> None:
    budget = MemoryBudget(80 * MIB, patience=0.01)
    await budget.take(60 * MIB)
    with pytest.raises(Unavailable, match="max-memory-mib"):
        await budget.take(60 * MIB)
    budget.give(60 * MIB)
    assert budget.held == 0
    await budget.take(60 * MIB)


async def test_one_who_goes_away_holds_nothing_up() -> None:
    budget = MemoryBudget(80 * MIB, patience=10)
    await budget.take(60 * MIB)
    gone = asyncio.create_task(budget.take(60 * MIB))
    behind = asyncio.create_task(budget.take(5 * MIB))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    await behind
    assert budget.held == 65 * MIB


async def test_one_who_goes_away_as_its_turn_comes_gives_it_back() -> None:
    budget = MemoryBudget(80 * MIB, patience=10)
    await budget.take(60 * MIB)
    gone = asyncio.create_task(budget.take(60 * MIB))
    await asyncio.sleep(0)
    budget.give(60 * MIB)
    gone.cancel()
    await asyncio.wait([gone])
    assert budget.held == (0 if gone.cancelled() else 60 * MIB)
