"""Fixtures of the whole suite."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True, scope="session")
def _quiet_logs() -> Iterator[None]:
    """Log lines of code under test go to the standard library, as in a node, and not to stdout."""
    structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())
    logging.getLogger("cellstore").setLevel(logging.INFO)
    yield
    structlog.reset_defaults()
