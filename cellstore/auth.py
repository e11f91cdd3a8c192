"""Bearer tokens: which requests may come in."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Protocol

import structlog

from cellstore.errors import StartRefused

log = structlog.get_logger("cellstore.auth")


class Tokens(Protocol):
    """The tokens that are valid now."""

    def allow(self, authorization: bytes | None) -> bool:
        """Whether a request with this `Authorization` header may come in."""

    def refresh(self) -> None:
        """Look whether the tokens have changed."""


class NoTokens:
    """Everybody may come in."""

    def allow(self, authorization: bytes | None) -> bool:
        return True

    def refresh(self) -> None:
        """Nothing can change."""


class FixedTokens:
    """Tokens that do not change while the node runs."""

    def __init__(self, tokens: list[bytes]) -> None:
        self._accepted = [b"Bearer " + token for token in tokens]

    def allow(self, authorization: bytes | None) -> bool:
        if authorization is None:
            return False
        allowed = False
        for accepted in self._accepted:
            # Every token is compared: the time taken tells nothing about which one matched.
            allowed |= hmac.compare_digest(authorization, accepted)
        return allowed

    def refresh(self) -> None:
        """Nothing can change."""


class TokenFile:
    """Tokens from a file, one a line, read again when the file changes.

    A change that cannot be used (no file, no token in it) is logged, and the tokens known so far
    go on being valid: a slip of an operator shuts nobody out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen, self._tokens = self._load()

    def allow(self, authorization: bytes | None) -> bool:
        return self._tokens.allow(authorization)

    def refresh(self) -> None:
        try:
            if self._mark() == self._seen:
                return
            self._seen, self._tokens = self._load()
        except (OSError, StartRefused) as fault:
            mark = self._failed_mark()
            if mark != self._seen:
                self._seen = mark
                log.warning("token file not usable, keeping the tokens known", fault=str(fault))
        else:
            log.info("token file read again", file=str(self._path))

    def _load(self) -> tuple[object, FixedTokens]:
        mark = self._mark()
        return mark, FixedTokens(parse_tokens(self._path.read_bytes(), f"{self._path}"))

    def _mark(self) -> object:
        status = self._path.stat()
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def _failed_mark(self) -> object:
        return self._mark() if self._path.exists() else None


def parse_tokens(text: bytes, source: str) -> list[bytes]:
    """Tokens from the lines of a file; blank lines and spaces around tokens do not count.

    Raises StartRefused when there is none, or one that no HTTP header can carry.
    """
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    if not tokens:
        raise StartRefused(f"{source} holds no token; put one in, a line each")
    for token in tokens:
        check_token(token, source)
    return tokens


def check_token(token: bytes, source: str) -> bytes:
    """Raise StartRefused unless `token` can be sent as a bearer token."""
    if not token:
        raise StartRefused(f"{source} is empty; set a token, or unset it to run without one")
    if any(byte <= 0x20 or byte >= 0x7F for byte in token):
        raise StartRefused(
            f"{source} holds a character that is not visible ASCII; use another token"
        )
    return token


def tokens_from(environment_token: str | None, token_file: Path | None) -> Tokens:
    """The tokens of this node, from its settings. Raises StartRefused."""
    if token_file is not None:
        try:
            return TokenFile(token_file)
        except OSError as fault:
            raise StartRefused(f"--token-file {token_file}: {fault.strerror}") from None
    if environment_token is not None:
        token = check_token(os.fsencode(environment_token), "CHIDORI_RUN_STORE_TOKEN")
        return FixedTokens([token])
    return NoTokens()
