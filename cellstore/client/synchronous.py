"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack

import httpx

from cellstore.client import lease, plans, wire
from cellstore.client.core import Answer, Pause, Plan, Result, Send, T
from cellstore.client.errors import StoreBroken, StoreError, Unavailable
from cellstore.client.splitting import Splitter
from cellstore.client.wire import Options, Wire
