"""What can come of a request, one class for each thing a caller can do about it.

Messages name the operation, its object and the next step. They never hold a token, a record or a
blob; what the server says is cut to a line.
"""

from __future__ import annotations


class StoreError(Exception):
    """The root of the tree. Unless it is OutcomeUnknown, what was asked for was not done."""


class OwnedElsewhere(StoreError):
    """Another node owns the run, or none can be named. The fields are those of the answer.

    Go to `owner_url` where there is one. For a lease: stand down.
    """

    def __init__(
        self, message: str, owner: str, lease_expires_at: str | None, owner_url: str | None
    ) -> None:
        super().__init__(message)
        self.owner = owner
        self.lease_expires_at = lease_expires_at
        self.owner_url = owner_url


class OutcomeUnknown(StoreError):
    """The write may be done, may not be, and may be done a little later: read, then decide.

    `last` is what the last attempt met.
    """

    def __init__(self, message: str, last: StoreError) -> None:
        super().__init__(message)
        self.last = last


class Unavailable(StoreError):
    """Nothing is wrong with the request, and nothing was written: send it again later."""


class PreconditionFailed(StoreError):
    """A conditional write lost: read again and decide again."""


class Unauthorized(StoreError):
    """The token is missing or is not one of the server's."""


class BadRequest(StoreError):
    """The request can never succeed as it is: mend it."""


class TooLarge(BadRequest):
    """The body is over the server's limit."""


class NotFound(StoreError):
    """The server does not know the path: the URL may be that of something else."""


class DiskFull(StoreError):
    """The node has no room. The same request succeeds when there is some."""


class StoreBroken(StoreError):
    """What is stored cannot be read, or the answer is not one of a run store: look into it."""


class LeaseHeld(StoreError):
    """Somebody else holds the lease, until `expires_at` if it is not renewed."""

    def __init__(self, message: str, owner: str, expires_at: str) -> None:
        super().__init__(message)
        self.owner = owner
        self.expires_at = expires_at


class LeaseLost(StoreError):
    """The lease is not held any more: somebody took it over, or removed it. Stop at once."""
