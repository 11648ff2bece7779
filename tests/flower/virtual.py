"""A virtual clock for code that uses threads: one thread runs at a time, time jumps to the next thing that happens.

Threads are real, but each waits for the baton; whoever sleeps or waits for a mailbox hands it on to the next in time,
ties in the order in which they were scheduled. So a run with many threads is deterministic and takes no time.
"""

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(order=True)
class _Entry:
    time: float
    number: int
    wake: threading.Event = field(compare=False)
    cancelled: bool = field(default=False, compare=False)


class VirtualClock:
    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[_Entry] = []
        self._numbers = itertools.count()
        self.problems: list[BaseException] = []

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._hand_over(self.schedule(self._now + seconds).wake)

    def spawn(self, work: Callable[[], None]) -> None:
        entry = self.schedule(self._now)

        def body() -> None:
            entry.wake.wait()
            try:
                work()
            except BaseException as problem:
                self.problems.append(problem)
            self._hand_over(None)

        threading.Thread(target=body, daemon=True).start()

    def mailbox(self) -> "VirtualMailbox":
        return VirtualMailbox(self)

    def schedule(self, time: float, wake: threading.Event | None = None) -> _Entry:
        entry = _Entry(time, next(self._numbers), wake or threading.Event())
        heapq.heappush(self._heap, entry)
        return entry

    def _hand_over(self, own: threading.Event | None) -> None:
        while self._heap:
            entry = heapq.heappop(self._heap)
            if not entry.cancelled:
                self._now = max(self._now, entry.time)
                entry.wake.set()
                break
        else:
            if own is not None:
                raise RuntimeError(f"nothing will ever happen again; problems: {self.problems}")
        if own is not None:
            own.wait()


class VirtualMailbox:
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._items: deque[Any] = deque()
        self._waiting: threading.Event | None = None
        self._woken: _Entry | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None and self._woken is None:
            self._woken = self._clock.schedule(self._clock.now(), self._waiting)

    def get(self, *, until: float) -> Any | None:
        if not self._items and until > self._clock.now():
            event = self._waiting = threading.Event()
            timeout = self._clock.schedule(until, event) if until < math.inf else None
            self._clock._hand_over(event)
            for entry in (timeout, self._woken):
                if entry is not None:
                    entry.cancelled = True  # it waits no longer, whichever of the two came first
            self._waiting = self._woken = None
        return self._items.popleft() if self._items else None
