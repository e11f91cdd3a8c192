"""Fixtures of the whole suite."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import structlog


@pytest.fixture(autouse=True, scope="session")
def _quiet_logs() -> Iterator[None]:
    """Log lines of code under test go to the standard library, as in a node, and not to stdout."""
    structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())
    logging.getLogger("cellstore").setLevel(logging.INFO)
    yield
    structlog.reset_defaults()


_measured = pytest.StashKey[list[str]]()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Notes a line that is printed at the end of the run, whatever is captured."""
    return request.config.stash.setdefault(_measured, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_measured, [])
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
