"""One watched run: the state it is in, its columns and events.

Whatever the files hold is taken for text and numbers; a file that is a link, or that cannot be understood, is not
shown. Read next: `watch.py`, all runs of a page.
"""

import math
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedgmr.files import METRICS, RECIPE, SUMMARY, UPDATES
from fedgmr.pages.columns import FollowedRows
from fedgmr.pages.events import JournalEvents, thinned
from fedgmr.reading import Reading
from fedgmr.reporting.records import Run, marks, read_run, read_summary
from fedgmr.reporting.run_files import RunFiles, flattened
from fedgmr.reporting.theory import Theory
from fedgmr.reporting.theory_words import account
from fedgmr.settings.text import read_mapping

# Settings that tell no two runs apart: names, where the data lies, where and how a run is computed and saved.
_ASIDE = re.compile(
    r"name|about|device|task\.options\.root|method\.title|checkpoint\..*|execution\.(?!tf32|autocast).*"
)
_PROVENANCE = ("commit", "device", "recipe_digest", "rows_digest")  # of a summary, beside `versions`
_LEFT_OUT = frozenset(("digest", "models", "versions", *_PROVENANCE)) - {"device"}  # of a summary, in a state
_CHANGED = "{} cannot be understood, or was changed: `fedgmr verify` says more."
_LARGEST = 1 << 63


class WatchedRun:
    """One run, to be looked at again and again."""

    def __init__(self, number: int, files: RunFiles) -> None:
        self.number, self.files = number, files
        self.rows = FollowedRows(files.path, lambda: Theory(self._recipe))
        self.settings: Mapping[str, Any] = {}
        self._journal: JournalEvents | None = None
        self._recipe: Mapping[str, Any] = {}
        self._summary: Mapping[str, Any] = {}
        self._problem, self._at_work = "", False
        self.notices: list[str] = []
        self._seen: object = None
        self.looked = -math.inf  # when, by a clock that only goes forward

    def advance(self) -> None:
        """Take in what is new."""
        self.looked = time.monotonic()
        seen = [_identity(self.files.path / name) for name in (RECIPE, SUMMARY)]
        changed = seen != self._seen
        if changed:  # before the rows: where there is a summary, they are complete
            self._seen, self._problem = seen, ""
            self._recipe = self._read(RECIPE, read_mapping) if seen[0] else {}
            self._summary = self._read(SUMMARY, read_summary) if seen[1] else {}
            self.settings = {key: value for key, value in flattened(self._recipe).items() if not _ASIDE.fullmatch(key)}
        self._at_work = not self._summary and self.files.at_work()
        self.rows.advance(at_work=self._at_work)
        if self._journal is None and (self.files.path / UPDATES).exists():
            self._journal = JournalEvents(self.files.path)
        if self._journal is not None:
            self._journal.advance()
        if changed:
            self.notices = self._ending()

    def verify(self) -> None:
        """Hold the rows to the summary's digest, which looking at a live run does not."""
        try:
            if self._summary:
                read_run(self.files.path)
        except (ValueError, OSError):  # whose words may name other places
            self._problem = self._problem or _CHANGED.format(METRICS)

    def run(self) -> Run:
        """The run as tables read it."""
        history = self.rows.columns.history()
        return Run(path=Path(self.files.name), recipe_text="", summary=self._summary, history=history)

    def _read(self, name: str, read: Any) -> Mapping[str, Any]:
        try:
            data: Mapping[str, Any] = _plain(read(self.files.path / name))
            return data
        except (ValueError, TypeError, OSError, RecursionError):  # whose words may name other places
            self._problem = _CHANGED.format(name)
            return {}

    def columns(self, start: int, epoch: int, *, clients: bool = True) -> dict[str, Any]:
        """The rows from one on; all of them where the epoch is another one by now."""
        columns = self.rows.columns
        start = min(max(0, start), len(columns)) if epoch == self.rows.epoch else 0
        head = {"id": self.number, "epoch": self.rows.epoch, "from": start, "rows": len(columns)}
        theory = None if columns.terms is None else _plain(account(columns.terms))
        return head | {"theory": theory} | columns.given(start, clients=clients)

    def events(self, start: int, epoch: int) -> dict[str, Any]:
        """What clients did, in the rows from one on; of a deployed run always everything."""
        columns = self.rows.columns
        start = min(max(0, start), len(columns)) if epoch == self.rows.epoch and self._journal is None else 0
        head = {"id": self.number, "epoch": self.rows.epoch, "from": start, "rows": len(columns)}
        return head | (thinned(columns.events.given(start)) if self._journal is None else self._journal.given())

    def provenance(self) -> dict[str, Any]:
        """The recipe as it stands in the directory, and what the run was computed with."""
        path = self.files.path / RECIPE
        text = path.read_text(encoding="utf-8", errors="replace") if _identity(path) else ""
        facts = {key: self._summary[key] for key in _PROVENANCE if self._summary.get(key)}
        return {"recipe": text, "facts": {**facts, **self._summary.get("versions", {})}}

    def entry(self, differing: Iterable[str]) -> dict[str, Any]:
        """What a state says about the run; of its settings only the differing ones."""
        columns, budget = self.rows.columns, _number(self._recipe.get("seconds"))
        running, readings = self.status == "running", self._readings()
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
            "clock": self._summary.get("clock") or ("virtual" if self._journal is None else "real"),
            "events": len(columns) if self._journal is None else self._journal.lines,
            "metric": _told(readings[0], "accuracy"),
            "others": [_told(other, f"metric {other.name}") for other in readings[1:]],
            "notices": self.notices,
            "marks": self._marks(),
            "page": None,
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

    def _readings(self) -> list[Reading]:
        """How the values of the metrics are read, the leading one first."""
        try:
            return Reading.recorded(self._summary or self.rows.columns.first)
        except ValueError:
            return [Reading()]

    def _ending(self) -> list[str]:
        """Sentences about how the run ended; of one that has not, its status says it all."""
        if not self._summary or not len(self.rows.columns):
            return []
        marked, problem = self._marks(), self._summary.get("problem")
        return [text for text in self.run().notices if text not in marked] + ([str(problem)] if problem else [])

    def _marks(self) -> list[str]:
        """Sentences that a reader must know before believing the numbers, also while the run goes on."""
        evaluation = self._recipe.get("evaluation")
        on_test = isinstance(evaluation, Mapping) and evaluation.get("validation") == "test"
        known = self._summary or {"short": self._recipe.get("short") is True, "decides_on_test": on_test}
        return marks(known, self._readings()[0])


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; None where there is no file, or a link in its place."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _told(reading: Reading, key: str) -> dict[str, Any]:
    """How the values of a column are read."""
    return {"key": key, **_plain(reading.data), "factor": reading.factor}


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
