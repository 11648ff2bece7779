"""Ways for a run to die: a process calls one of these on itself before it starts, and is killed in the middle.

The signal is SIGKILL, which no code sees coming: nothing is flushed, closed or tidied up.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from fedgmr.cli import runs
from fedgmr.experiments import checkpoint


def die_after_calls(number: int, how: int = signal.SIGKILL) -> None:
    """Die at function call (or return) number so and so of a run, wherever that is: a moment, to the microsecond."""
    count = itertools.count(1)

    def profile(frame: Any, event: str, argument: Any) -> None:
        if next(count) == number:
            sys.setprofile(None)
            os.kill(os.getpid(), how)

    _profile_run(profile)


def count_calls(report: str) -> None:
    """Count the same calls and write their number into a file when the process ends."""
    count = itertools.count(1)
    _profile_run(lambda frame, event, argument: next(count) and None)
    import atexit
    from multiprocessing import util

    def write() -> None:
        Path(report).write_text(str(next(count)))

    atexit.register(write)
    util.Finalize(None, write, exitpriority=1)  # forked processes leave without atexit


def _profile_run(profile: Callable[[Any, str, Any], None]) -> None:
    """Call `profile` from the start of the command's run to its end, not while its time is told before."""
    whole = runs.run_recipe

    def profiled(*arguments: Any, **options: Any) -> Any:
        sys.setprofile(profile)
        try:
            return whole(*arguments, **options)
        finally:
            sys.setprofile(None)

    runs.run_recipe = profiled


def die_at(event: str, name: str, number: int = 1) -> None:
    """Die at the n-th file operation on a path with `name` in it.

    Events: "write" (half of the data is written), "fsync", "replace" (before), "replaced" (after), "unlink" (before).
    """
    count = itertools.count(1)

    def due(path: object) -> bool:
        return name in str(path) and next(count) == number

    _HOOKS[event](due)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


Due = Callable[[object], bool]


def _at_write(due: Due) -> None:
    real = Path.open

    def opened(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = real(self, mode, *arguments, **options)
        return _HalfWriter(file) if mode[0] != "r" and due(self) else file

    def saved(tensors: Any, path: Path, metadata: Any) -> None:
        save_file(tensors, path, metadata)
        if due(path):
            os.truncate(path, path.stat().st_size // 2)
            _die()

    Path.open = opened  # type: ignore[method-assign]
    checkpoint.save_file = saved


class _HalfWriter:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> "_HalfWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: Any) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        _die()


def _at_fsync(due: Due) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if due(os.readlink(f"/proc/self/fd/{descriptor}")):
            _die()
        real(descriptor)

    os.fsync = fsync


def _at_replace(due: Due, *, after: bool = False) -> None:
    real = os.replace

    def replace(source: Any, target: Any, **options: Any) -> None:
        hit = due(target)
        if hit and not after:
            _die()
        real(source, target, **options)
        if hit:
            _die()

    os.replace = replace  # type: ignore[assignment]


def _at_unlink(due: Due) -> None:
    real = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if due(self):
            _die()
        real(self, missing_ok=missing_ok)

    Path.unlink = unlink  # type: ignore[method-assign]


_HOOKS: dict[str, Callable[[Due], None]] = {
    "write": _at_write,
    "fsync": _at_fsync,
    "replace": _at_replace,
    "replaced": lambda due: _at_replace(due, after=True),
    "unlink": _at_unlink,
}
