"""The world outside of an agent: it counts what is done to it, and can keep a call waiting."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Event, Lock

from tests.interop.listener import Handler, listening


class World:
    """What `POST /effects/{number}` did, by number."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[int] = Counter()
        self._held: int | None = None
        self._released = Event()
        self.url = ""
        self.quiet: Callable[[], bool] = lambda: True

    def counts(self) -> dict[int, int]:
        """How often each effect happened."""
        with self._lock:
            return dict(self._counts)

    def hold(self, number: int) -> None:
        """Let this effect happen, but do not answer it until `release`."""
        self._held = number
        self._released.clear()

    def release(self) -> None:
        self._held = None
        self._released.set()

    def act(self, number: int) -> None:
        with self._lock:
            self._counts[number] += 1
        if number == self._held:
            self._released.wait()


@contextlib.contextmanager
def world() -> Iterator[World]:
    """A world that listens on a free port."""
    outside = World()

    class Effects(Handler):
        def do_POST(self) -> None:
            self.body()
            number = int(self.path.removeprefix("/effects/"))
            outside.act(number)
            answer = f"done {number}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.write(answer)

    with listening(Effects) as listener:
        outside.url, outside.quiet = listener.url, listener.quiet
        try:
            yield outside
        finally:
            outside.release()
