"""What goes on where nothing else is seen: said on standard error after two seconds of silence.

The command line says so at a terminal while it loads, reads or times something, and a display without a terminal while
a run is prepared. Nothing is imported that takes long, because loading torch is the first thing that is said.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE = 2.0  # wall seconds of silence


class Notice:
    """Words that are said in two seconds, unless the notice is withdrawn before."""

    def __init__(self, words: str, say: Callable[[str], object]) -> None:
        self._timer = threading.Timer(_PATIENCE, say, [words])
        self._timer.daemon = True
        self._timer.start()

    def withdraw(self) -> None:
        """Say nothing, if nothing was said yet."""
        self._timer.cancel()


@contextmanager
def said_when_slow(words: str) -> Iterator[None]:
    """Say at a terminal what goes on within, if that takes long."""
    if not sys.stderr.isatty():
        yield
        return
    notice = Notice(f"fedgmr: {words} ...", _say)
    try:
        yield
    finally:
        notice.withdraw()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
