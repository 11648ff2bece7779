"""The export: runs to a tracker, once, or followed until they end.

The rows that a tracker has are compared with those in the directory. Where a resume has dropped some, they are taken
back; a tracker that cannot do that gets a row only when it is final. Read next: `tracker.py`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.reporting.history import History
from fedgmr.reporting.recorder import HOST_CLOCK
from fedgmr.reporting.run_files import RunFiles, find_runs, is_run
from fedgmr.settings.refusals import SettingError
from fedgmr.trackers.tracker import Tracker, Values

_INTERVAL = 1.0  # seconds between two looks at the runs
_QUIET = 5.0  # seconds without a new row after which the lock is looked at
PATIENCE = 60.0
_WHEN = ("seconds", "tick", "client")  # of a row per client


class Export:
    """One run on its way to a tracker."""

    def __init__(self, run: RunFiles, tracker: Tracker, *, clients: bool) -> None:
        self.run, self.tracker, self.clients = run, tracker, clients
        self.sent: list[Mapping[str, Any]] = []  # the rows that the tracker has
        self.ended = False
        tracker.begin(run)

    def advance(self, *, everything: bool) -> bool:
        """Hand on what is new, and the summary once it is there; `everything`: rows that may change as well."""
        if not is_run(self.run.path):
            return False  # it was removed: what the tracker has of it stays
        summary = self.run.summary()  # before the rows: where it is there, they are complete
        rows = self.run.rows()
        if not (everything or self.tracker.takes_back or summary):
            rows = rows[: self.run.final_rows()]
        same = _common(self.sent, rows, but="" if self.tracker.takes_back else HOST_CLOCK)
        if same < len(self.sent) and same == len(rows) and not summary and not everything:
            return False  # dropped by a resume, which writes them again
        changed = same < max(len(self.sent), len(rows))
        if same < len(self.sent):
            self._take_back(same)
        if same < len(rows):
            self.tracker.add(self.run, same, numbers(rows[same:], clients=self.clients))
            self.sent += rows[same:]
        if summary and not self.ended:
            self.tracker.end(self.run, summary)
            self.ended = changed = True
        return changed

    def _take_back(self, first: int) -> None:
        if not self.tracker.takes_back:
            raise SettingError(
                f"Row {first} of {self.run.path} is not the one that was exported: the run was begun anew, and this "
                "tracker takes nothing back; export it again, with another --output or without --follow."
            )
        self.tracker.take_back(self.run, first)
        del self.sent[first:]


def export(
    directory: Path,
    tracker: Tracker,
    *,
    follow: bool = False,
    clients: bool = False,
    patience: float = PATIENCE,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[RunFiles]:
    """Export the runs in a directory; returns those that have not ended.

    Args:
        directory: a run directory, or one with runs below it.
        tracker: where they go; it is left open.
        follow: go on until all have ended, or nothing has happened for `patience` seconds: nobody works on an
            interrupted run, or no further run has begun below the directory.
        clients: the values of every client too, as `clients.N.density`.
        patience: in seconds.
        wait: sleeps.
        clock: seconds that only go forward.
    """
    exports, last = dict[Path, Export](), clock()
    while True:
        begun = [run for run in find_runs(directory) if run.path not in exports]
        exports |= {run.path: Export(run, tracker, clients=clients) for run in begun}
        unended = [each for each in exports.values() if not each.ended]
        news = [each.advance(everything=not follow) for each in unended]
        if any(news):
            tracker.flush()
            last = clock()
        elif clock() - last >= _QUIET and any(each.run.at_work() for each in unended):
            last = clock()
        if not follow or (is_run(directory) and all(each.ended for each in exports.values())):
            break
        if clock() - last >= patience:
            break
        wait(_INTERVAL)
    interrupted = [each for each in exports.values() if not each.ended]
    for each in interrupted:
        each.advance(everything=True)
        tracker.end(each.run, {})
    return [each.run for each in interrupted]


def numbers(rows: Sequence[Mapping[str, Any]], *, clients: bool) -> list[Values]:
    """The numbers of rows by name, `views.padded.accuracy` or `clients.3.density`; what is null is left out."""
    history = History.of(rows)
    found: list[dict[str, float]] = [
        {name: value for name, value in row.items() if _is_number(value)} for row in history.table()
    ]
    count = history.density.shape[1]
    for place, row in enumerate(history.client_table() if clients else ()):
        values = {name.removeprefix("clients."): value for name, value in row.items() if name not in _WHEN}
        found[place // count] |= {f"clients.{row['client']}.{n}": v for n, v in values.items() if _is_number(v)}
    return list(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _common(sent: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], *, but: str) -> int:
    """The number of first rows that are the same in all fields but one."""
    for place, (old, new) in enumerate(zip(sent, rows, strict=False)):
        if {**old, but: None} != {**new, but: None}:
            return place
    return min(len(sent), len(rows))
