"""Time and threads behind one small interface, so that a test can replace both by a virtual clock.

The fleet's threads (one sender, one watcher, one puller per message in flight) wait only through a clock and its
mailboxes.
"""

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol


class Mailbox(Protocol):
    """A queue between threads."""

    def put(self, item: Any) -> None:
        """Append an item; never waits."""
        ...

    def get(self, *, until: float) -> Any | None:
        """The next item, or None if there is none at the moment `until`."""
        ...


class Clock(Protocol):
    """The time, and threads that wait for it."""

    def now(self) -> float:
        """Seconds since any fixed moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let this thread wait."""
        ...

    def spawn(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread that does not keep the program alive."""
        ...

    def mailbox(self) -> Mailbox:
        """A new, empty mailbox."""
        ...


class _Queue:
    def __init__(self, clock: "WallClock") -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._clock = clock

    def put(self, item: Any) -> None:
        self._queue.put(item)

    def get(self, *, until: float) -> Any | None:
        try:
            wait = until - self._clock.now()
            return self._queue.get_nowait() if wait <= 0 else self._queue.get(timeout=min(wait, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None


class WallClock:
    """The real time; monotonic, so that nobody's correction of the date is seen."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(max(0.0, min(seconds, threading.TIMEOUT_MAX)) if not math.isnan(seconds) else 0.0)

    def spawn(self, work: Callable[[], None]) -> None:
        """Run `work` in a daemon thread."""
        threading.Thread(target=work, daemon=True).start()

    def mailbox(self) -> Mailbox:
        """A new, empty mailbox."""
        return _Queue(self)
