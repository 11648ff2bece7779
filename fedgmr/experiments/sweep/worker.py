"""The processes of a sweep, from inside: a worker does the runs that come through a pipe, and tells how they go.

They leave Ctrl-C to their parent and do not outlive it.
"""

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedgmr.experiments.sweep.work import Outcome, perform_run
from fedgmr.recipe import recipe_from

_UPDATE_INTERVAL = 0.2  # wall seconds between two reports


def serve(connection: Connection, threads: int) -> None:
    """A worker: do the runs that come through the pipe until it closes."""
    _settle(threads)

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        connection.send(("warning", str(message)))

    warnings.showwarning = tell
    while True:
        try:
            data, directory = connection.recv()
        except EOFError:
            return
        connection.send(("ended", _outcome(data, Path(directory), _Reporter(connection))))


def answer(connection: Connection, threads: int, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """A process for one call: its result through the pipe, None where it raises."""
    _settle(threads)
    try:
        result = function(*arguments)
    except Exception:
        result = None
    connection.send(result)


def _settle(threads: int) -> None:
    """What every process of a sweep begins with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _outcome(data: Mapping[str, Any], directory: Path, reporter: "_Reporter") -> Outcome:
    try:
        return perform_run(recipe_from(data), directory, reporter)
    except (MemoryError, torch.cuda.OutOfMemoryError) as error:
        # Several runs may share a device: end, so that this one's memory is free when it is taken up again.
        raise SystemExit(f"{directory.name}: {error}") from error
    except Exception:
        return Outcome(status="failed", problem=traceback.format_exc())


def _follow_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


class _Reporter:
    """The watcher of a run in a worker: sends its state now and then."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.due = connection, 0.0

    def update(self, **state: float) -> None:
        now = time.monotonic()
        if now >= self.due:
            self.due = now + _UPDATE_INTERVAL
            self.connection.send(("update", state))
