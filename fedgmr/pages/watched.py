"""The watched runs: what state they are in, and their columns by number. A page never names a path.

Whatever the files hold is taken for text and numbers; a file that is a link, or that cannot be understood, is not
shown. Read next: `server.py`, which answers a browser with it, and `report.py`.
"""

import math
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.files import RECIPE, SUMMARY, UPDATES
from fedgmr.pages.columns import FollowedRows
from fedgmr.reading import Reading
from fedgmr.reporting.records import read_summary
from fedgmr.reporting.run_files import RunFiles, find_runs, flattened
from fedgmr.settings.text import read_mapping
from fedgmr.version import __version__

# Settings that tell no two runs apart: names, where the data lies, where and how a run is computed and saved.
_ASIDE = re.compile(
    r"name|about|device|task\.options\.root|method\.title|checkpoint\..*|execution\.(?!tf32|autocast).*"
)
_TITLES = 3  # directories named in a title
_LEFT_OUT = frozenset(("digest", "recipe_digest", "rows_digest", "models", "versions", "commit"))  # of a summary
_LARGEST = 1 << 63


class WatchedRun:
    """One run, to be looked at again and again."""

    def __init__(self, number: int, files: RunFiles) -> None:
        self.number, self.files = number, files
        self.rows = FollowedRows(files.path)
        self.settings: Mapping[str, Any] = {}
        self._recipe: Mapping[str, Any] = {}
        self._summary: Mapping[str, Any] = {}
        self._problem, self._at_work = "", False
        self._seen: object = None
        self.looked = -math.inf  # when, by a clock that only goes forward

    def advance(self) -> None:
        """Take in what is new."""
        self.looked = time.monotonic()
        seen = [_identity(self.files.path / name) for name in (RECIPE, SUMMARY)]
        if seen != self._seen:  # before the rows: where there is a summary, they are complete
            self._seen, self._problem = seen, ""
            self._recipe = self._read(RECIPE, read_mapping) if seen[0] else {}
            self._summary = self._read(SUMMARY, read_summary) if seen[1] else {}
            self.settings = {key: value for key, value in flattened(self._recipe).items() if not _ASIDE.fullmatch(key)}
        self._at_work = not self._summary and self.files.at_work()
        self.rows.advance(at_work=self._at_work)

    def _read(self, name: str, read: Any) -> Mapping[str, Any]:
        try:
            data: Mapping[str, Any] = _plain(read(self.files.path / name))
            return data
        except (ValueError, TypeError, OSError, RecursionError):  # whose words may name other places
            self._problem = f"{name} cannot be understood, or was changed: `fedgmr verify` says more."
            return {}

    def columns(self, start: int, epoch: int, *, clients: bool = True) -> dict[str, Any]:
        """The rows from one on; all of them where the epoch is another one by now."""
        columns = self.rows.columns
        start = min(max(0, start), len(columns)) if epoch == self.rows.epoch else 0
        head = {"id": self.number, "epoch": self.rows.epoch, "from": start, "rows": len(columns)}
        return head | columns.given(start, clients=clients)

    def entry(self, differing: Iterable[str]) -> dict[str, Any]:
        """What a state says about the run; of its settings only the differing ones."""
        columns, budget = self.rows.columns, _number(self._recipe.get("seconds"))
        running = self.status == "running"
        return {
            "id": self.number,
            "name": self.files.name,
            "status": self.status,
            "problem": self._problem or self.rows.problem or None,
            "seconds": budget,
            "eta": columns.seconds_left(budget) if running and budget is not None else None,
            "rows": len(columns),
            "epoch": self.rows.epoch,
            "settings": {key: self.settings.get(key) for key in differing},
            "method": self._method(),
            "seed": _number(self._recipe.get("seed")),
            "clients": columns.clients,
            "ladder": self._ladder(),
            "links": self._links(),
            "clock": self._summary.get("clock") or ("real" if (self.files.path / UPDATES).exists() else "virtual"),
            "metric": self._metric(),
            "summary": {key: value for key, value in self._summary.items() if key not in _LEFT_OUT} or None,
        }

    @property
    def status(self) -> str:
        """`running`, `interrupted`, or what its summary says; `unknown` where a file cannot be understood."""
        if self._problem or self.rows.problem:
            return "unknown"
        if self._summary:
            return str(self._summary.get("status"))
        return "running" if self._at_work else "interrupted"

    def _method(self) -> str:
        method = self._recipe.get("method")
        names = method if isinstance(method, Mapping) else {}
        return str(names.get("title") or names.get("name") or self.files.name)

    def _ladder(self) -> list[float]:
        """The densities by level: those of the recipe, unless the rows have others (a method without sub-models)."""
        ladder = _listed(self._recipe, "method", "ladder")
        columns = self.rows.columns
        levels, densities = (columns.per_client[name][: columns.clients] for name in ("level", "density"))
        known = {level: density for level, density in zip(levels, densities, strict=True) if density == density}
        if all(level in range(len(ladder)) and ladder[int(level)] == density for level, density in known.items()):
            return ladder
        return [known[level] for level in sorted(known)]

    def _links(self) -> list[list[float | None]] | None:
        """Down and up of every client, where the recipe has them one by one."""
        links = [link for link in _listed(self._recipe, "fleet", "links") if isinstance(link, Mapping)]
        return [[_number(link.get("down")), _number(link.get("up"))] for link in links] or None

    def _metric(self) -> dict[str, Any]:
        try:
            reading = Reading.recorded(self._summary or self.rows.columns.first)[0]
        except ValueError:
            reading = Reading()
        return {"key": "accuracy", **_plain(reading.data), "factor": reading.factor}


class Watch:
    """The runs in and below directories, also those that begin later; several threads may ask."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = [Path(directory).absolute() for directory in directories]
        self._runs: dict[Path, WatchedRun] = {}
        self._lock = threading.Lock()

    @property
    def title(self) -> str:
        """What is watched, in a few words."""
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
            return {"title": self.title, "made": __version__, "runs": [run.entry(differing) for run in runs]}

    def columns(self, number: int, start: int, epoch: int, *, clients: bool = True) -> dict[str, Any] | None:
        """The rows of a run from one on; None where there is no such run."""
        with self._lock:
            for run in self._runs.values():
                if run.number == number:
                    run.advance()
                    return run.columns(start, epoch, clients=clients)
        return None

    def _look(self) -> list[WatchedRun]:
        """The runs that are there, each with the number that it has once and for all."""
        found = []
        for directory in self._directories:
            try:
                several = len(self._directories) > 1
                for files in find_runs(directory):
                    name = f"{directory.name}/{files.name}" if several and files.path != directory else files.name
                    named = RunFiles(path=files.path, name=name)
                    found.append(self._runs.setdefault(files.path, WatchedRun(len(self._runs), named)))
            except OSError:  # a directory that was removed just now
                continue
        return list(dict.fromkeys(found))


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; None where there is no file, or a link in its place."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _plain(value: Any) -> Any:
    """A value of a file as data that every JSON reader takes."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if abs(value) < _LARGEST else None
    return value if value is None else str(value)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _listed(data: Mapping[str, Any], section: str, key: str) -> list[Any]:
    found = data.get(section)
    values = found.get(key) if isinstance(found, Mapping) else None
    return values if isinstance(values, list) else []
