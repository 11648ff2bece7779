"""A stopwatch that divides a run: each second belongs to the innermost timed part at work."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

Part = tuple[str, Any, str]  # its name, a class or module, and the name of the function in it that is timed


@dataclass
class Stopwatch:
    """Seconds and calls by part; time inside a timed part called by another counts for the inner one only."""

    clock: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _inner: list[float] = field(default_factory=lambda: [0.0])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time spent here belongs to `name`."""
        began = self.clock()
        self._inner.append(0.0)
        try:
            yield
        finally:
            whole = self.clock() - began
            own = whole - self._inner.pop()
            self._inner[-1] += whole
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            self.calls[name] = self.calls.get(name, 0) + 1

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed as `name`."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*arguments, **named)

        return wrapped

    @contextmanager
    def on(self, parts: Sequence[Part]) -> Iterator[None]:
        """Time these parts within the block; several functions may share a name."""
        with ExitStack() as patches:
            for name, owner, function in parts:
                patches.enter_context(patch.object(owner, function, self.timed(name, getattr(owner, function))))
            yield
