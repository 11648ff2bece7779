"""Time and threads in one place, so that a test can put a virtual clock there instead.

The fleet's threads (one sender, one watcher, one puller per request in flight) wait only through a clock and its
mailboxes.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """The real time; monotonic, so that a correction of the date is not seen."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let this thread wait."""
        time.sleep(seconds)

    def spawn(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread that does not keep the program alive."""
        threading.Thread(target=work, daemon=True).start()

    def mailbox(self) -> "Mailbox":
        """A new, empty mailbox."""
        return Mailbox(self)


class Mailbox:
    """A queue between threads."""

    def __init__(self, clock: Clock) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._clock = clock

    def put(self, item: Any) -> None:
        """Append an item; never waits."""
        self._queue.put(item)

    def get(self, *, until: float) -> Any | None:
        """The next item, or None if there is none at the moment `until`."""
        try:
            wait = until - self._clock.now()
            return self._queue.get_nowait() if wait <= 0 else self._queue.get(timeout=min(wait, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None
