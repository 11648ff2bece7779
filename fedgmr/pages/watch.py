"""The runs of a page, by number: a page never names a path.

Read next: `server.py`, which answers a browser with them, and `report.py`, which puts them into a file.
"""

import contextlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.pages.overview import table_of
from fedgmr.pages.watched import WatchedRun
from fedgmr.reporting.comparison import Comparison
from fedgmr.reporting.run_files import RunFiles, find_runs
from fedgmr.version import __version__

_TITLES = 3  # directories named in a title


class Watch:
    """The runs in and below directories, also those that begin later; several threads may ask."""

    def __init__(self, directories: Sequence[Path], *, title: str = "", comparison: Comparison | None = None) -> None:
        """`comparison`: the table of the runs where it was made already, with a target of its own, say."""
        self._directories = [Path(directory).absolute() for directory in directories]
        self._labels = _labels(self._directories)
        self._title, self._comparison = title, comparison
        self._table: dict[str, Any] | None = None
        self._tabulated: object = None  # the runs of the table
        self._runs: dict[Path, WatchedRun] = {}
        self._lock = threading.Lock()

    @property
    def title(self) -> str:
        """What is watched, in a few words."""
        if self._title:
            return self._title.encode(errors="replace").decode()
        names = ", ".join(directory.name for directory in self._directories[:_TITLES])
        if len(self._directories) > _TITLES:
            names += f" and {len(self._directories) - _TITLES} more"
        return names.encode(errors="replace").decode()  # a name of a file may be no text

    def state(self, patience: float = math.inf) -> dict[str, Any]:
        """The runs as they are now; of many long ones as many as can be read in so many seconds, then the others."""
        with self._lock:
            runs, end = self._look(), time.monotonic() + patience
            for run in sorted(runs, key=lambda run: run.looked):
                run.advance()
                if time.monotonic() > end:
                    break
            runs = [run for run in runs if run.looked > -math.inf]
            keys = dict.fromkeys(key for run in runs for key in run.settings)
            differing = [key for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1]
            entries = [run.entry(differing) for run in runs]
            return {"title": self.title, "made": __version__, "table": self._tabulate(runs, entries), "runs": entries}

    def _tabulate(self, runs: Sequence[WatchedRun], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The table of the runs that have ended, made anew when others have."""
        ended = [(run, entry) for run, entry in zip(runs, entries, strict=True) if entry["summary"] and entry["rows"]]
        seen = [(run.number, run.rows.epoch, entry["rows"], entry["settings"]) for run, entry in ended]
        if seen != self._tabulated:
            self._tabulated = seen
            self._table = table_of([(run.run(), entry) for run, entry in ended], self._comparison)
        return self._table

    def columns(self, number: int, start: int, epoch: int, *, clients: bool = True) -> dict[str, Any] | None:
        """The rows of a run from one on; None where there is no such run."""
        with self._lock:
            run = self._run(number)
            if run is None:
                return None
            run.advance()
            return run.columns(start, epoch, clients=clients)

    def events(self, number: int, start: int, epoch: int) -> dict[str, Any] | None:
        """What the clients of a run did; None where there is no such run."""
        with self._lock:
            run = self._run(number)
            return None if run is None else run.events(start, epoch)

    def provenance(self, number: int) -> dict[str, Any] | None:
        """The recipe of a run and what it was computed with; None where there is no such run."""
        with self._lock:
            run = self._run(number)
            return None if run is None else run.provenance()

    def verify(self) -> None:
        """Hold all runs that are there to the digests of their summaries."""
        with self._lock:
            for run in self._look():
                run.advance()
                run.verify()

    def place(self, number: int) -> Path:
        """The directory of a run that a state has named."""
        return next(run.files.path for run in self._runs.values() if run.number == number)

    def _run(self, number: int) -> WatchedRun | None:
        return next((run for run in self._runs.values() if run.number == number), None)

    def _look(self) -> list[WatchedRun]:
        """The runs that are there, each with the number that it has once and for all."""
        found = []
        for directory, label in zip(self._directories, self._labels, strict=True):
            with contextlib.suppress(OSError):  # a directory that was removed just now
                for files in find_runs(directory):
                    inner = "" if files.path == directory else files.name
                    name = "/".join(filter(None, (label, inner))) or files.name
                    named = RunFiles(path=files.path, name=name)
                    found.append(self._runs.setdefault(files.path, WatchedRun(len(self._runs), named)))
        return list(dict.fromkeys(found))


def _labels(directories: Sequence[Path]) -> list[str]:
    """As many of the last parts of directories as tell them apart; none of a single one."""
    several, labels, count = len(set(directories)), [""] * len(directories), 0
    while len(set(labels)) < several:
        count += 1
        labels = ["/".join(path.parts[-count:]) for path in directories]
    return labels
