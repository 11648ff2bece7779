"""The live display of long work: a table with one row per run on a terminal, an occasional plain line elsewhere.

`Display` shows one run, a comparison, a sweep or a deployed run; a `RunRow` is one run in it and the watcher that the
loop tells after every tick. That happens up to thousands of times a second, so nothing is formatted until a refresh is
due. The time left of a run is its virtual seconds left at a smoothed speed. The time left of a sweep is the work left
at the pace since its start, where work is how long each run was expected to take.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedgmr.files import METRICS, UPDATES, last_row
from fedgmr.reading import Reading
from fedgmr.reporting.quantities import format_bytes, format_clock
from fedgmr.reporting.watcher import Watcher

_LIVE_INTERVAL = 0.2  # wall seconds between two refreshes
_PLAIN_INTERVAL, _PLAIN_SWEEP_INTERVAL = 10.0, 30.0
_SMOOTHING = 10.0  # wall seconds over which the speed of a run forgets
_UNKNOWN, _DONE = "-:--", "done"
_METRIC = "acc"  # the column of the leading metric, under its own name where it is no accuracy
_NAMED = ("tick", _METRIC, "density", "up", "down", "ETA")  # columns of a plain line after the name and the time
_WORDS = ("run", "directory")  # columns that are aligned left
_DROPPED_FIRST = ("directory", "tick", "density", "down", "up", "bar")  # a narrow terminal loses these, in this order
_GAP = "  "
_BAR_WIDTHS = 8, 40


class RunRow(Watcher):
    """One run in a display, and the watcher of that run."""

    def __init__(self, display: "Display", label: str, total: float, directory: str) -> None:
        self.label, self.directory = label, directory  # the first and the last words of the row
        self.seconds, self.total = 0.0, total  # virtual seconds so far, and of the whole run
        self.status = ""  # how the run ended
        self._display = display
        self._state: dict[str, Any] = {}  # the newest report
        self._seconds_before = 0.0  # virtual seconds at the first report
        self._mark: tuple[float, float] | None = None  # (wall, virtual) seconds at the previous refresh
        self._speed = 0.0  # virtual seconds per wall second

    def after_tick(self, state: Mapping[str, Any]) -> None:
        """Report where the run stands."""
        self.update(**state)

    def update(self, **state: Any) -> None:
        """Report where the run stands: seconds, tick, accuracy, density, bytes_up and bytes_down; readings, if any."""
        if not self._state:
            self._seconds_before = state["seconds"]
        self._state, self.seconds = state, state["seconds"]
        self._display.refresh()

    def follow(self, directory: Path) -> None:
        """Report where a run in another process stands, by the files of its directory; nothing before they exist."""
        row = last_row(directory / METRICS)
        if row is None:
            return
        tick = last_row(directory / UPDATES, event="tick") or row
        self.update(
            seconds=max(float(tick["seconds"]), float(row["seconds"])),
            tick=max(int(tick["tick"]), int(row["tick"])),
            accuracy=row["accuracy"],
            density=sum(row["density"]) / len(row["density"]),
            bytes_up=sum(row["bytes_up"]),
            bytes_down=sum(row["bytes_down"]),
            **({"readings": row["readings"]} if "readings" in row else {}),
        )

    def end(self, status: str, accuracy: float | None) -> None:
        """Report how the run ended; its last reports were made some time before."""
        self.status = _DONE if status == "finished" else status
        self.seconds = self.total if status == "finished" else self.seconds
        if self._state and accuracy is not None:
            self._state["accuracy"] = accuracy

    @property
    def reading(self) -> Reading:
        """How its leading metric is read, as far as it is known."""
        return Reading.recorded(self._state)[0]

    @property
    def share(self) -> float:
        """Share of the run that is done, 0..1."""
        return min(1.0, self.seconds / self.total)

    @property
    def share_before(self) -> float:
        """Share that was done before this process took the run up, which says nothing about the pace."""
        return min(1.0, self._seconds_before / self.total)

    def fields(self, now: float) -> dict[str, str]:
        """The texts of the row by column; empty where nothing is known."""
        state, fields = self._state, {"run": self.label, "bar": ""}
        fields["time (s)"] = f"{self.seconds:,.0f}/{self.total:,.0f}"
        fields["tick"] = f"{state['tick']:,}" if state else ""
        fields[_METRIC] = self.reading.brief(state["accuracy"]) if state else ""
        fields["density"] = f"{state['density']:.2f}" if state else ""
        fields["up"] = format_bytes(state["bytes_up"]) if state else ""
        fields["down"] = format_bytes(state["bytes_down"]) if state else ""
        return fields | {"ETA": self.status or self._time_left(now), "directory": self.directory}

    def _time_left(self, now: float) -> str:
        if not self._state:
            return _UNKNOWN
        # The first report only sets the mark: a resumed run starts with virtual seconds spent elsewhere.
        if self._mark is not None and now > self._mark[0]:
            elapsed = now - self._mark[0]
            keep = math.exp(-elapsed / _SMOOTHING) if self._speed else 0.0
            self._speed = keep * self._speed + (1.0 - keep) * (self.seconds - self._mark[1]) / elapsed
        self._mark = now, self.seconds
        return format_clock(max(0.0, self.total - self.seconds) / self._speed) if self._speed > 0 else _UNKNOWN


class Display:
    """Shows how far one run or the runs of a sweep are; a context, which leaves the terminal as it found it.

    Args:
        work: how long every run still to do is expected to take, by name and in any unit; None for a single run.
        about: words that tell runs of the same label apart, by name.
        finished: how many runs of the sweep were done before.
        stream: where to write; standard error unless given.
        clock: the wall clock, for tests.
    """

    def __init__(
        self,
        *,
        work: Mapping[str, float] | None = None,
        about: Mapping[str, str] | None = None,
        finished: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._began, self._due = clock, clock(), -math.inf
        self._sweep, self._work, self._finished = work is not None, dict(work or {}), finished
        self._about = about or {}
        self._rows: dict[str, RunRow] = {}  # in the order in which the runs began
        self._interval = _PLAIN_SWEEP_INTERVAL if self._sweep else _PLAIN_INTERVAL
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
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._due = math.inf

    def begin(self, name: str, label: str, seconds: float) -> RunRow:
        """Add a run that starts or goes on, with the words in its row and its time budget in virtual seconds.

        `name` is its name in `work`, which is the name of its directory; empty for a single run.
        """
        self._rows.pop(name, None)  # a run that is resumed gets a new row, below the others
        row = self._rows[name] = RunRow(self, f"{label} {self._about.get(name, '')}".rstrip(), seconds, name)
        if self._live is not None:
            self.refresh(at_once=True)
        return row

    def end(self, name: str, status: str, accuracy: float | None = None) -> None:
        """Take note of how a run ended, and of the accuracy it came to."""
        self._rows[name].end(status, accuracy)
        if status != "finished":
            self._work[name] = 0.0  # it did not take its time, and says nothing about the pace
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
            self._stream.write(self._line(now) + "\n")
            self._stream.flush()

    def _drawn(self, now: float, width: int, height: int) -> Text:
        """The table within the terminal, and the line of totals below it."""
        # Not a rich.table.Table: that takes 20 ms for 30 rows, and this may be the process that trains.
        rows = self._most_telling(height - 3)
        cells = [row.fields(now) for row in rows]
        names = dict.fromkeys(_METRIC if row.reading.accuracy else row.reading.name for row in rows)
        title = next(iter(names)) if len(names) == 1 else "metric"
        widths = _widths(cells, width, title)
        bar = widths.get("bar", 0)
        for row, texts in zip(rows, cells, strict=True):
            texts["bar"] = ("━" * int(row.share * bar)).ljust(bar, "─")
        header = dict(zip(widths, widths, strict=True)) | {"bar": "", _METRIC: title}
        lines = []
        for texts in [header, *cells]:
            lines.append(_GAP.join(_fitted(column, texts[column], wide) for column, wide in widths.items()))
        # A single run has an empty line there: the ^C that a terminal shows would wrap at the end of a full one.
        lines.append(f"{self._counts()}  ETA {self._time_left(now)}" if self._sweep else "")
        drawn = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        drawn.stylize("bold", 0, len(lines[0]))
        drawn.highlight_regex("━+", "cyan")
        drawn.highlight_regex("─+", "dim")
        return drawn

    def _most_telling(self, most: int) -> Sequence[RunRow]:
        """The rows there is room for; of those that ended, the oldest are left out first."""
        rows = list(self._rows.values())
        for row in [row for row in rows if row.status]:
            if len(rows) > most:
                rows.remove(row)
        return rows[: max(1, most)]

    def _line(self, now: float) -> str:
        """The state in one plain line: of the sweep, or of the run that is alone."""
        running = [row for row in self._rows.values() if not row.status]
        if self._sweep:
            shown = [f"{row.label} {row.seconds:,.0f}/{row.total:,.0f} s" for row in running]
            return "  ".join([self._counts(), *shown, f"ETA {self._time_left(now)}"])
        texts, reading = running[-1].fields(now), running[-1].reading
        titles = {} if reading.accuracy else {_METRIC: reading.name}
        named = [f"{titles.get(column, column)} {texts[column]}" for column in _NAMED if texts[column]]
        return "  ".join([texts["run"], f"{texts['time (s)']} s", *named])

    def _counts(self) -> str:
        ends = [row.status for row in self._rows.values() if row.status]
        failed, total = len(ends) - ends.count(_DONE), self._finished + len(self._work)
        done = self._finished + ends.count(_DONE)
        parts = [f"{done}/{total} runs done", f"{failed} failed" if failed else "", f"{total - done - failed} left"]
        return "  ".join(filter(None, parts))

    def _time_left(self, now: float) -> str:
        rows = self._rows.items()
        done = sum(self._work[name] * row.share for name, row in rows)
        fresh, elapsed = done - sum(self._work[name] * row.share_before for name, row in rows), now - self._began
        if fresh <= 0 or elapsed <= 0:
            return _UNKNOWN
        return format_clock((sum(self._work.values()) - done) * elapsed / fresh)


def shown_progress() -> Display:
    """A display where a library shows one: on a terminal or standard error, in a notebook among its output."""
    return Display(stream=sys.stdout if in_notebook() else None)


def in_notebook() -> bool:
    """Whether a notebook runs this process."""
    return "ipykernel" in sys.modules


def _widths(cells: Sequence[Mapping[str, str]], width: int, metric: str) -> dict[str, int]:
    """The columns that fit into a terminal and their widths; the bar takes what is left, the name gives what lacks."""
    shown = [column for column in cells[0] if column == "bar" or any(texts[column] for texts in cells)]
    widths = {column: max(map(cell_len, [column, *(texts[column] for texts in cells)])) for column in shown}
    if _METRIC in widths:
        widths[_METRIC] = max(cell_len(text) for text in (metric, *(texts[_METRIC] for texts in cells)))
    widths["bar"] = _BAR_WIDTHS[0]
    for column in _DROPPED_FIRST:
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) > width:
            widths.pop(column, None)
    spare = width - sum(widths.values()) - len(_GAP) * (len(widths) - 1)
    if "bar" in widths and spare > 0:
        widths["bar"] = min(_BAR_WIDTHS[1], widths["bar"] + spare)
    elif spare < 0:
        widths["run"] = max(1, widths["run"] + spare)
    return widths


def _fitted(column: str, text: str, width: int) -> str:
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width) if column in _WORDS else text.rjust(width)
