"""What can go wrong, one class for each thing a caller can do about it.

Each error owns its HTTP status and says, in its message, what failed, on which object and what to
do next. One handler (in `answers.py`) turns them into answers. Messages never hold a token, a
record or a blob.
"""

from __future__ import annotations


class CellstoreError(Exception):
    """The root of the tree. `status` is the HTTP status of the answer."""

    status = 500

    @property
    def message(self) -> str:
        return str(self)


class BadRequest(CellstoreError):
    """The request can never succeed as it is: mend it."""

    status = 400


class Unauthorized(CellstoreError):
    """No valid token came with the request."""

    status = 401


class NotFound(CellstoreError):
    """The path, or what it names, is not there."""

    status = 404


class MethodNotAllowed(CellstoreError):
    """The path is known, the method is not; `allow` lists those that are."""

    status = 405

    def __init__(self, allow: str) -> None:
        super().__init__(f"method not allowed; use one of: {allow}")
        self.allow = allow


class OwnershipUnknown(CellstoreError):
    """The answer to a lease request that cannot be decided: the client must stand down."""

    status = 409


class OwnedElsewhere(CellstoreError):
    """Another node owns the cell: go there. The fields are those of the answer."""

    status = 409

    def __init__(self, owner: str, lease_expires_at: str | None, owner_url: str | None) -> None:
        super().__init__("cell owned elsewhere")
        self.owner = owner
        self.lease_expires_at = lease_expires_at
        self.owner_url = owner_url

    def again(self) -> OwnedElsewhere:
        """The same refusal for another request."""
        return OwnedElsewhere(self.owner, self.lease_expires_at, self.owner_url)


class PreconditionFailed(CellstoreError):
    """A conditional write lost: read again and decide again."""

    status = 412

    def __init__(self) -> None:
        super().__init__("precondition failed")


class BodyTooLarge(CellstoreError):
    """The body is over the limit of this node."""

    status = 413


class Unavailable(CellstoreError):
    """Nothing is wrong with the request; the node cannot serve it now. Retry after some seconds."""

    status = 503
    retry_after = 1


class DiskFull(CellstoreError):
    """Nothing was written: there is no room. The same request succeeds when there is room."""

    status = 507


class CellBroken(CellstoreError):
    """A cell's files cannot be read. Only this cell is affected; its data needs repair."""

    status = 500


class NewerFormat(CellBroken):
    """A cell was written by a later version of this program."""


class StartRefused(Exception):
    """The node must not start: a setting, the data directory or the address is at fault."""
