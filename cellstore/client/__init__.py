"""A client of run stores, blocking and asynchronous alike; `docs/client.md` is its guide."""

from __future__ import annotations

from cellstore.client.asynchronous import AsyncClient, AsyncLease
from cellstore.client.core import Answer
from cellstore.client.errors import (
    BadRequest,
    DiskFull,
    LeaseHeld,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    OwnedElsewhere,
    PreconditionFailed,
    StoreBroken,
    StoreError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from cellstore.client.plans import Blob
from cellstore.client.spelling import Record
from cellstore.client.synchronous import Client, Lease

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncLease",
    "BadRequest",
    "Blob",
    "Client",
    "DiskFull",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "NotFound",
    "OutcomeUnknown",
    "OwnedElsewhere",
    "PreconditionFailed",
    "Record",
    "StoreBroken",
    "StoreError",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
]
