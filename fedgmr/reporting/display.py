"""The live display of long work: a table with one row per run on a terminal, plain lines elsewhere.

`Display` shows one run, a comparison, a sweep or a deployed run; a sweep shows every run from its start, also those
that wait. Nothing is formatted until a refresh is due. The time left of a run is its virtual seconds left at a smoothed
speed. The time left of a sweep, and of a run in it that waits, is the work before its end at the pace since the start,
where work is how long each run was expected to take. Read next: `rows.py`, a run in the display.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedgmr.notices import Notice
from fedgmr.reporting.quantities import format_clock
from fedgmr.reporting.row_table import table_lines
from fedgmr.reporting.rows import DONE, METRIC, UNKNOWN, ExpectedRun, RunRow

_LIVE_INTERVAL = 0.2  # wall seconds between two refreshes
_PLAIN_INTERVAL, _PLAIN_SWEEP_INTERVAL = 10.0, 30.0
_LISTED = 40  # runs of a sweep that are listed where there is no terminal
_BELIEF = 10.0  # wall seconds of measured pace that count as much as the expected one
_NAMED = ("tick", METRIC, "density", "up", "down", "ETA")  # columns of a plain line after the name and the time


class Display:
    """Shows how far one run or the runs of a sweep are; a context, which leaves the terminal as it found it.

    Args:
        runs: the runs of a sweep, in the order in which they start; None for a single run.
        expected: wall seconds that a single run is expected to take, where that is known.
        pace: work done in a wall second, as it is expected; None where the unit of work is another.
        stream: where to write; standard error unless given.
        clock: the wall clock, for tests.
    """

    def __init__(
        self,
        runs: Iterable[ExpectedRun] | None = None,
        *,
        expected: float | None = None,
        pace: float | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._began, self._due = clock, clock(), -math.inf
        self._sweep = runs is not None
        known = list(runs or ())
        self._rows = {run.name: RunRow.expected(run, self._changed) for run in known}
        self._work = {run.name: run.work for run in known} if expected is None else {"": expected}
        self._pace = pace if expected is None else 1.0
        self._interval = _PLAIN_SWEEP_INTERVAL if self._sweep else _PLAIN_INTERVAL
        self._notice: Notice | None = None  # of what a run does before its first tick
        self._live: Live | None = None
        if self._stream.isatty():
            console = Console(file=self._stream, force_terminal=True, markup=False, highlight=False, emoji=False)
            if not console.is_dumb_terminal:
                # Lines printed meanwhile appear above the table; standard output only if it is a terminal too.
                shared = sys.stdout.isatty()
                self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=shared)
                self._interval = _LIVE_INTERVAL

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._live.console.show_cursor(True)  # a process that is killed could not bring it back
            if self._rows:
                self.refresh(at_once=True)
        elif self._rows:
            self._list()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._withdraw()
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._due = math.inf

    def begin(self, name: str, label: str, seconds: float) -> RunRow:
        """Show that a run starts or goes on, with the words in its row and its time budget in virtual seconds.

        `name` is the one that it is expected by, which is the name of its directory; empty for a single run.
        """
        before = self._rows.get(name)
        # A run that is resumed begins anew, because its speed does.
        row = self._rows[name] = RunRow(before.label if before else label, seconds, name, self._changed)
        self._work.setdefault(name, 0.0)
        if before is not None:
            row.seconds = before.seconds
        if self._live is not None:
            self.refresh(at_once=True)
        return row

    def end(self, name: str, status: str, accuracy: float | None = None) -> None:
        """Take note of how a run ended, and of the accuracy it came to."""
        row = self._rows[name]
        row.end(status, accuracy)
        if status != "finished":
            self._work[name] = 0.0  # it did not take its time, and says nothing about the pace
        if self._live is None:
            self._withdraw()
            self._write(self._row_line(row, UNKNOWN))
        self.refresh(at_once=True)

    def refresh(self, *, at_once: bool = False) -> None:
        """Redraw the display or write a line, if that is due."""
        now = self._clock()
        if now < self._due and not at_once:
            return
        self._due = now + self._interval
        if self._live is not None:
            self._live.update(self._drawn(now, *self._live.console.size), refresh=True)
        else:
            self._write(self._line(now))

    def _changed(self, row: RunRow) -> None:
        """A row was told something: that its run has come on, or what is prepared before its first tick."""
        if self._live is not None:
            self.refresh(at_once=bool(row.stage) and self._due < math.inf)
            return
        self._withdraw()
        if not row.stage:
            self.refresh()
        elif self._due < math.inf:
            self._notice = Notice(f"{row.label}  {row.stage} ...", self._write)

    def _withdraw(self) -> None:
        if self._notice is not None:
            self._notice.withdraw()
            self._notice = None

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def _drawn(self, now: float, width: int, height: int) -> Text:
        """The table within the terminal, and the line of totals below it."""
        # Not a rich.table.Table: that takes 20 ms for 30 rows, and this may be the process that trains.
        rows = self._most_telling(height - 3)
        left = self._times_left(now)
        texts = {row: row.fields(row.time_left(now, left.get(row.directory))) for row in rows}
        lines = table_lines(texts, width)
        # A single run has an empty line there: the ^C that a terminal shows would wrap at the end of a full one.
        hidden = f"  {len(self._rows) - len(rows)} not shown" if len(rows) < len(self._rows) else ""
        lines.append(f"{self._totals(left)}{hidden}" if self._sweep else "")
        drawn = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        drawn.stylize("bold", 0, len(lines[0]))
        drawn.highlight_regex("━+", "cyan")
        drawn.highlight_regex("─+", "dim")
        return drawn

    def _most_telling(self, most: int) -> Sequence[RunRow]:
        """The rows there is room for: those that run; half of the rest for the next ones, half for the last results."""
        rows = list(self._rows.values())
        ended, waiting = [row for row in rows if row.status], [row for row in rows if row.waiting]
        room = max(0, most - (len(rows) - len(ended) - len(waiting)))
        coming = min(len(waiting), max(room - len(ended), (room + 1) // 2))
        left_out = {*ended[: max(0, len(ended) - (room - coming))], *waiting[coming:]}
        return [row for row in rows if row not in left_out][: max(1, most)]

    def _list(self) -> None:
        """Write a line for every run of a sweep, as it is before the first starts."""
        left, shown = self._times_left(self._clock()), self._most_telling(_LISTED)
        for row in shown:
            self._write(self._row_line(row, _clock_text(left.get(row.directory))))
        if len(shown) < len(self._rows):
            self._write(f"... and {len(self._rows) - len(shown)} more")

    def _row_line(self, row: RunRow, time_left: str) -> str:
        """One run in a plain line."""
        texts, reading = row.fields(time_left), row.reading
        titles = {} if reading.accuracy else {METRIC: reading.name}
        named = [f"{titles.get(column, column)} {texts[column]}" for column in _NAMED if texts[column]]
        if row.status:
            named[-1] = row.status
        return "  ".join(filter(None, [texts["run"], row.stage, f"{texts['time (s)']} s", *named]))

    def _line(self, now: float) -> str:
        """The state in one plain line: of the sweep, or of the run that is alone."""
        left = self._times_left(now)
        running = [row for row in self._rows.values() if not row.status and not row.waiting]
        if self._sweep:
            return self._totals(left, [f"{row.label} {_brief(row)}" for row in running])
        row = running[-1]
        return self._row_line(row, row.time_left(now, left.get(row.directory)))

    def _totals(self, left: Mapping[str, float], running: Sequence[str] = ()) -> str:
        ends = [row.status for row in self._rows.values() if row.status]
        done, total = ends.count(DONE), len(self._rows)
        failed = len(ends) - done
        parts = [f"{done}/{total} runs done", f"{failed} failed" if failed else "", f"{total - done - failed} left"]
        until = max(left.values(), default=0.0) if left or not total - len(ends) else None
        return "  ".join(filter(None, [*parts, *running, f"ETA {_clock_text(until)}"]))

    def _times_left(self, now: float) -> dict[str, float]:
        """Wall seconds until each run ends, by name; empty where nothing is known of the pace."""
        work = {name: self._work[name] * (1.0 - row.progress) for name, row in self._rows.items() if not row.status}
        fresh = sum(self._work[name] * row.progress for name, row in self._rows.items())
        elapsed = now - self._began
        if self._pace is not None:  # the expected pace is less and less believed
            pace = (fresh + _BELIEF * self._pace) / (elapsed + _BELIEF)
        elif fresh > 0 and elapsed > 0:
            pace = fresh / elapsed
        else:
            return {}
        # Those that run share the pace, and those that wait come after them.
        running = [name for name in work if not self._rows[name].waiting]
        left = {name: work[name] * len(running) / pace for name in running}
        before = sum(work[name] for name in running)
        for name in work:
            if self._rows[name].waiting:
                before += work[name]
                left[name] = before / pace
        return left


def in_notebook() -> bool:
    """Whether a notebook runs this process."""
    return "ipykernel" in sys.modules


def _brief(row: RunRow) -> str:
    """How far a run is, in few words."""
    texts = row.fields("")
    metric = "" if not texts[METRIC] else f" {METRIC if row.reading.accuracy else row.reading.name} {texts[METRIC]}"
    return f"{texts['time (s)']} s{metric}"


def _clock_text(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else format_clock(seconds)
