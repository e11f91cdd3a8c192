"""Broken variants."""

from __future__ import annotations

from typing import Any

VARIANTS: dict[str, Any] = {}
