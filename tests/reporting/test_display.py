"""The live display: a table within the terminal, plain lines elsewhere, the time left, and what it costs."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgmr import notices
from fedgmr.reporting import Display
from fedgmr.reporting.rows import ExpectedRun

STATE = {"tick": 131, "accuracy": 0.934, "density": 0.42, "bytes_up": 12_300_000, "bytes_down": 40_100_000}
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def outlook(name: str, label: str = "", seconds: float = 10.0, work: float = 1.0, **known: Any) -> ExpectedRun:
    return ExpectedRun(name=name, label=label or name, seconds=seconds, work=work, **{"last": {}} | known)


@pytest.fixture
def sized(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def resize(columns: int = 80, lines: int = 24) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", str(lines))

    resize()
    return resize


def screens(stream: io.StringIO) -> list[list[str]]:
    """The drawings one after the other, without colours; each begins with the header of the table."""
    text = CODES.sub("", stream.getvalue()).replace("\r", "\n")
    return [("run" + part).rstrip().splitlines() for part in re.split(r"^run\b", text, flags=re.MULTILINE)[1:]]


def words(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


def test_another_metric_has_its_name_and_its_unit(sized: Callable[..., None]) -> None:
    readings = [{"name": "MAE", "unit": "kWh", "higher_is_better": False, "digits": 3}]
    stream = Terminal()
    with Display(stream=stream, clock=Clock()) as display:
        display.begin("", "A", 100.0).after_tick({"seconds": 10.0, **{**STATE, "accuracy": 1.25, "readings": readings}})
        display.refresh(at_once=True)
    header, row = screens(stream)[-1][:2]
    assert "MAE" in words(header)
    assert "acc" not in words(header)
    assert "1.250 kWh" in words(row)
    plain = io.StringIO()
    with Display(stream=plain, clock=Clock()) as display:
        display.begin("", "A", 100.0).after_tick({"seconds": 10.0, **{**STATE, "accuracy": None, "readings": readings}})
    assert "  MAE -  " in plain.getvalue()


def test_a_run_is_a_row_of_a_table(sized: Callable[..., None]) -> None:
    stream, clock = Terminal(), Clock()
    with Display(stream=stream, clock=clock) as display:
        row = display.begin("", "FedGMR seed 0", 2850)
        clock.now += 1.0
        row.after_tick({"seconds": 1163.3, **STATE})
        clock.now += 1.0
        row.after_tick({"seconds": 1240.0, **STATE})
    header, line = screens(stream)[-2]
    assert words(header) == ["run", "time (s)", "acc", "density", "up", "down", "ETA"]
    # 1,610 s are left at 76.7 a second, and 4.8 of the bar's 11 are done.
    expected = ["FedGMR seed 0", "━━━━───────", "1,240/2,850", "93.4 %", "0.42", "12.3 MB", "40.1 MB", "0:21"]
    assert words(line) == expected
    assert words(screens(stream)[0][1])[1:] == ["starting", "0/2,850", "-:--"]  # before the first report


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (160, ["run", "time (s)", "tick", "acc", "density", "up", "down", "ETA", "directory"]),
        (100, ["run", "time (s)", "tick", "acc", "density", "up", "down", "ETA"]),
        (80, ["run", "time (s)", "acc", "density", "up", "down", "ETA"]),
        (76, ["run", "time (s)", "acc", "up", "down", "ETA"]),
        (61, ["run", "time (s)", "acc", "up", "ETA"]),
        (52, ["run", "time (s)", "acc", "ETA"]),
        (42, ["run", "time (s)", "acc", "ETA"]),
        (32, ["run", "time (s)", "acc", "ETA"]),
    ],
)
def test_columns_go_by_priority_and_no_line_wraps(
    sized: Callable[..., None], columns: int, expected: list[str]
) -> None:
    sized(columns)
    stream, clock = Terminal(), Clock()
    name = "quickstart-fedasync-s0-0123456789ab"
    with Display([outlook(name, "FedAsync seed 0", 2850)], stream=stream, clock=clock) as display:
        row = display.begin(name, "FedAsync seed 0", 2850)
        for seconds in (0.0, 1240.0):
            clock.now += 1.0
            row.after_tick({"seconds": seconds, **STATE})
    header, line, total = screens(stream)[3]
    assert words(header) == expected
    assert ("━" in line) == (columns >= 52)
    assert line.startswith("FedAsync seed 0" if columns > 32 else "FedA…")
    assert total == "0/1 runs done  1 left  ETA 0:03"
    assert max(map(len, [header, line, total])) <= columns
    assert columns < 100 or len(line) > 0.9 * columns  # the bar takes what is left, up to 40


def test_running_rows_and_the_next_ones_are_shown_where_not_all_have_room(sized: Callable[..., None]) -> None:
    sized(80, 8)
    stream = Terminal()
    names = [f"run{number}" for number in range(9)]
    with Display([outlook(name) for name in names], stream=stream) as display:
        drawn = [line.split()[0] for line in screens(stream)[-1]]
        assert drawn == ["run", "run0", "run1", "run2", "run3", "run4", "0/9"]
        assert screens(stream)[-1][-1].endswith("4 not shown")
        for name in names[:-1]:
            display.begin(name, name, 10)
            if name in ("run0", "run2", "run3"):
                display.end(name, "finished" if name != "run2" else "diverged")
        drawn = [line.split()[0] for line in screens(stream)[-1]]
        assert drawn == ["run", "run1", "run4", "run5", "run6", "run7", "2/9"]
        assert screens(stream)[-1][-1].startswith("2/9 runs done  1 failed  6 left  ETA ")
    assert any(line.startswith("run2") and "diverged" in line for screen in screens(stream) for line in screen)


def test_every_run_of_a_sweep_is_there_from_the_start(sized: Callable[..., None]) -> None:
    """Two runs at once: 60 wall seconds of work are expected to take 30, and those that wait come after the others."""
    runs = [
        outlook("a", "FedGMR seed 0", 400, 0.0, status="finished", done=400, last={"accuracy": 0.951}),
        outlook("b", "FedGMR seed 1", 400, 10.0, done=100, last={"accuracy": 0.5}),
        outlook("c", "FedAvg seed 0", 400, 20.0),
        outlook("d", "FedAvg seed 1", 400, 30.0),
    ]
    stream, clock = Terminal(), Clock()
    with Display(runs, pace=2.0, stream=stream, clock=clock) as display:
        _, *rows, total = screens(stream)[-1]
        assert [words(row)[0] for row in rows] == [run.label for run in runs]
        assert [words(row)[-2] for row in rows] == ["done", "0:05", "0:15", "0:30"]
        assert [words(row)[1:3] for row in rows[1:]] == [
            ["waiting", "100/400"],
            ["waiting", "0/400"],
            ["waiting", "0/400"],
        ]
        assert [words(row)[3] for row in rows[:2]] == ["95.1 %", "50.0 %"]
        assert total == "1/4 runs done  3 left  ETA 0:30"
        display.begin("b", "FedGMR seed 1", 400).preparing("reading the data")
        assert words(screens(stream)[-1][2])[1] == "reading the data"
        clock.now += 10.0
        display.end("b", "finished", 0.8)
        # The pace of these 10 s was 1, so that of the 10 before is believed as much: 1.5, and 50 s of work are left.
        assert screens(stream)[-1][-1] == "2/4 runs done  2 left  ETA 0:33"

    plain = io.StringIO()
    with Display(runs, pace=2.0, stream=plain, clock=Clock()):
        assert plain.getvalue().splitlines() == [
            "FedGMR seed 0  400/400 s  acc 95.1 %  done",
            "FedGMR seed 1  waiting  100/400 s  acc 50.0 %  ETA 0:05",
            "FedAvg seed 0  waiting  0/400 s  ETA 0:15",
            "FedAvg seed 1  waiting  0/400 s  ETA 0:30",
        ]


def test_a_long_list_is_cut() -> None:
    stream = io.StringIO()
    with Display([outlook(f"run{number}") for number in range(50)], stream=stream):
        lines = stream.getvalue().splitlines()
    assert len(lines) == 41
    assert lines[-1] == "... and 10 more"


def test_the_time_of_a_single_run_may_be_known_before_it_starts() -> None:
    stream, clock = io.StringIO(), Clock()
    with Display(expected=40.0, stream=stream, clock=clock) as display:
        display.begin("", "FedGMR seed 0", 1000).after_tick({"seconds": 0.0, **STATE})
    assert stream.getvalue().endswith("ETA 0:40\n")


def test_without_a_terminal_a_slow_start_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Any] = []

    class FakeTimer:
        """A timer that goes off when the test says so."""

        def __init__(self, seconds: float, function: Callable[[str], object], arguments: list[str]) -> None:
            self.seconds, self.fire = seconds, lambda: function(*arguments)

        def start(self) -> None:
            waiting.append(self)

        def cancel(self) -> None:
            waiting.remove(self)

    monkeypatch.setattr(notices.threading, "Timer", FakeTimer)
    stream, clock = io.StringIO(), Clock()
    with Display(stream=stream, clock=clock) as display:
        row = display.begin("", "FedGMR seed 0", 10)
        row.preparing("reading the data")
        (timer,) = waiting
        assert timer.seconds == 2.0
        timer.fire()
        row.preparing("making the model")
        assert len(waiting) == 1, "the one before is withdrawn"
        row.after_tick({"seconds": 1, **STATE})
        assert waiting == []
    first, second = stream.getvalue().splitlines()
    assert first == "FedGMR seed 0  reading the data ..."
    assert second.startswith("FedGMR seed 0  1/10 s  tick 131")


def test_an_ended_run_is_shown_as_complete_with_its_last_accuracy(sized: Callable[..., None]) -> None:
    sized(110)
    stream = Terminal()
    runs = [outlook("a", "FedGMR seed 0 rate=0.1", 400), outlook("b", "FedGMR seed 0 rate=0.2", 400)]
    with Display(runs, stream=stream) as display:
        for name in ("a", "b"):
            display.begin(name, "FedGMR seed 0", 400).after_tick({"seconds": 312.0, **STATE})
        display.end("a", "finished", 0.951)
        display.end("b", "died")
        _, first, second, total = screens(stream)[-1]
    assert [words(first)[index] for index in (0, 2, 4, 8)] == ["FedGMR seed 0 rate=0.1", "400/400", "95.1 %", "done"]
    assert [words(second)[index] for index in (0, 2, 4, 8)] == ["FedGMR seed 0 rate=0.2", "312/400", "93.4 %", "died"]
    assert "─" not in first
    assert total.startswith("1/2 runs done  1 failed  0 left")


def test_the_terminal_is_redrawn_at_most_five_times_a_second(sized: Callable[..., None]) -> None:
    stream, clock = Terminal(), Clock()
    with Display(stream=stream, clock=clock) as display:
        row = display.begin("", "FedGMR seed 0", 1000)
        for step in range(2000):
            clock.now = 100.0 + step / 1000
            row.after_tick({"seconds": step, **STATE})
        assert len(screens(stream)) == 10


def test_the_end_removes_the_table_and_silences_the_display(sized: Callable[..., None]) -> None:
    stream, before = Terminal(), (sys.stdout, sys.stderr)
    with Display(stream=stream) as display:
        row = display.begin("", "FedGMR seed 0", 10)
        print("a warning", file=sys.stderr)
        assert "a warning\n" in CODES.sub("", stream.getvalue())  # above the table, not through it
    assert (sys.stdout, sys.stderr) == before
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K" * 3)  # header, row and the line of totals are erased
    hidden, shown = stream.getvalue().rfind("\x1b[?25l"), stream.getvalue().rfind("\x1b[?25h")
    assert shown > hidden  # the cursor
    length = len(stream.getvalue())
    row.after_tick({"seconds": 5, **STATE})
    assert len(stream.getvalue()) == length


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_terminals_without_colour_or_without_movement(
    sized: Callable[..., None], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    stream = Terminal()
    with Display(stream=stream) as display:
        display.begin("", "FedGMR seed 0", 10).after_tick({"seconds": 1, **STATE})
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", stream.getvalue())
    if variable == "TERM":
        assert stream.getvalue().startswith("FedGMR seed 0  1/10 s  tick 131  acc 93.4 %")
        assert "\x1b" not in stream.getvalue()


def test_elsewhere_a_plain_line_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with Display(stream=stream, clock=clock) as display:
        row = display.begin("", "FedGMR seed 7", 100)
        for step in range(35):
            clock.now = 100.0 + step
            row.after_tick({"seconds": step, **STATE})
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["0/100 s", "10/100 s", "20/100 s", "30/100 s"]
    numbers = "tick 131  acc 93.4 %  density 0.42  up 12.3 MB  down 40.1 MB"
    assert lines[1] == f"FedGMR seed 7  10/100 s  {numbers}  ETA 1:30"
    assert lines[3] == f"FedGMR seed 7  30/100 s  {numbers}  ETA 1:10"


def test_elsewhere_a_sweep_has_a_line_every_half_minute_and_at_every_end() -> None:
    stream, clock = io.StringIO(), Clock()
    runs = [outlook(name, f"FedGMR seed {seed}") for seed, name in enumerate("ab")]
    with Display(runs, stream=stream, clock=clock) as display:
        row = display.begin("a", "FedGMR seed 0", 10.0)
        for second in range(70):
            clock.now = 100.0 + second
            row.after_tick({"seconds": second / 10, **STATE})
        display.end("a", "finished")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == [f"FedGMR seed {seed}  waiting  0/10 s  ETA -:--" for seed in (0, 1)]
    assert len(lines) == 2 + 3 + 2  # at 0, 30 and 60 seconds, and at the end
    assert lines[3] == "0/2 runs done  2 left  FedGMR seed 0 3/10 s acc 93.4 %  ETA 2:50"
    ended = "FedGMR seed 0  10/10 s  tick 131  acc 93.4 %  density 0.42  up 12.3 MB  down 40.1 MB  done"
    assert lines[-2:] == [ended, "1/2 runs done  1 left  ETA 1:09"]
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_the_default_stream_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.begin("", "FedGMR seed 0", 10).after_tick({"seconds": 1, **STATE})
    assert capsys.readouterr().err.startswith("FedGMR seed 0  1/10 s")


def test_the_time_left_of_a_run_counts_from_the_first_report_and_is_smoothed() -> None:
    stream, clock = io.StringIO(), Clock()
    with Display(stream=stream, clock=clock) as display:
        row = display.begin("", "FedGMR seed 0", 10_000)
        row.after_tick({"seconds": 5000, **STATE})  # resumed: these seconds say nothing about the speed
        clock.now += 10
        row.after_tick({"seconds": 5010, **STATE})
        clock.now += 10
        row.after_tick({"seconds": 6010, **STATE})
    ends = [line.split("  ")[-1] for line in stream.getvalue().splitlines()]
    # 4,990 s at 1 a second; then the speed is 1 + (1 - exp(-1)) * 99 = 63.58, and 3,990 / 63.58 = 62.8.
    assert ends == ["ETA -:--", "ETA 1:23:10", "ETA 1:03"]


def test_a_first_step_of_a_hair_is_no_pace() -> None:
    stream, clock = io.StringIO(), Clock()
    with Display(stream=stream, clock=clock) as display:
        row = display.begin("", "FedGMR seed 0", 10_000)
        for seconds in (0.0, 9.0):
            row.after_tick({"seconds": seconds, **STATE})
            clock.now += 10
    assert [line.split("  ")[-1] for line in stream.getvalue().splitlines()] == ["ETA -:--", "ETA -:--"]


def test_the_time_left_of_a_sweep_is_the_work_left_at_the_pace_so_far() -> None:
    stream, clock = io.StringIO(), Clock()
    before = [outlook(name, status="finished", work=0.0) for name in "xy"]
    labels = {"a": "FedGMR seed 0", "b": "FedAvg seed 0", "c": "FedAvg seed 1"}
    runs = [outlook(name, labels[name], 1000.0, work) for name, work in {"a": 100.0, "b": 300.0, "c": 600.0}.items()]
    display = Display([*before, *runs], stream=stream, clock=clock)

    def line() -> str:
        return stream.getvalue().splitlines()[-1]

    first = display.begin("a", "FedGMR seed 0", 1000.0)
    second = display.begin("b", "FedAvg seed 0", 1000.0)
    first.after_tick({"seconds": 0.0, **STATE})
    assert line() == "2/5 runs done  3 left  FedGMR seed 0 0/1,000 s acc 93.4 %  FedAvg seed 0 0/1,000 s  ETA -:--"
    second.after_tick({"seconds": 0.0, **STATE})
    clock.now = 130.0
    first.after_tick({"seconds": 500.0, **STATE})  # half of 100
    clock.now = 160.0
    second.after_tick({"seconds": 250.0, **STATE})  # a quarter of 300
    # 125 of 1000 in 60 s: 875 are left.
    at = "FedGMR seed 0 500/1,000 s acc 93.4 %  FedAvg seed 0 250/1,000 s acc 93.4 %"
    assert line() == f"2/5 runs done  3 left  {at}  ETA 7:00"
    clock.now = 135.0
    display.end("a", "finished")
    # 175 of 1000 in 35 s: 825 at 5 a second.
    assert line() == "3/5 runs done  2 left  FedAvg seed 0 250/1,000 s acc 93.4 %  ETA 2:45"
    display.end("b", "diverged")  # neither done nor left: 100 of 700 in 35 s
    assert line() == "3/5 runs done  1 failed  1 left  ETA 3:30"
    display.begin("c", "FedAvg seed 1", 1000.0)
    display.end("c", "finished")
    assert line() == "4/5 runs done  1 failed  0 left  ETA 0:00"


def test_work_done_before_says_nothing_about_the_pace() -> None:
    stream, clock = io.StringIO(), Clock()
    display = Display([outlook("a", "FedGMR seed 0", 1000.0, 100.0)], stream=stream, clock=clock)
    row = display.begin("a", "FedGMR seed 0", 1000.0)
    row.after_tick({"seconds": 800.0, **STATE})  # resumed
    clock.now += 40.0
    row.after_tick({"seconds": 900.0, **STATE})
    assert [line.split("  ")[-1] for line in stream.getvalue().splitlines()] == ["ETA -:--", "ETA 0:40"]


def test_a_run_in_another_process_is_followed_by_its_files(tmp_path: Path) -> None:
    stream, clock = io.StringIO(), Clock()
    with Display(stream=stream, clock=clock) as display:
        row = display.begin("", "FedGMR", 100)
        row.follow(tmp_path)
        assert stream.getvalue() == ""
        counts = {"density": [1.0, 0.5], "bytes_up": [3_000_000, 4_000_000], "bytes_down": [5_000_000, 6_000_000]}
        evaluation = {"seconds": 20.0, "tick": 2, "accuracy": 0.5, **counts}
        (tmp_path / "metrics.jsonl").write_text(json.dumps(evaluation) + '\n{"seconds": 3')
        row.follow(tmp_path)
        events = [{"event": "tick", "tick": 3, "seconds": 30.0}, {"event": "dispatched", "client": 1}]
        (tmp_path / "updates.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        clock.now += 10
        row.follow(tmp_path)
    numbers = "acc 50.0 %  density 0.75  up 7.00 MB  down 11.0 MB"
    assert stream.getvalue().splitlines() == [
        f"FedGMR  20/100 s  tick 2  {numbers}  ETA -:--",
        f"FedGMR  30/100 s  tick 3  {numbers}  ETA 1:10",
    ]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_reports_that_are_not_due_draw_nothing(sized: Callable[..., None], stream: io.StringIO) -> None:
    clock = Clock()
    with Display(stream=stream, clock=clock) as display:
        row = display.begin("", "FedGMR seed 0", 1e9)
        row.after_tick({"seconds": 0.0, **STATE})
        shown = stream.getvalue()
        for step in range(1000):
            row.after_tick({**STATE, "seconds": step, "tick": step})
        assert stream.getvalue() == shown, "nothing is drawn while the clock stands"


SCRIPT = """
import signal, sys, time
from fedgmr import notices
from fedgmr.reporting import Display
from fedgmr.reporting.rows import ExpectedRun
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
try:
    with Display() as display:
        row = display.begin("", "FedGMR seed 0", 1000)
        for step in range(100000):
            sizes = {"bytes_up": 0, "bytes_down": 0}
            row.after_tick({"seconds": step, "tick": step, "accuracy": 0.5, "density": 0.5, **sizes})
            time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
"""


def test_an_interrupt_leaves_the_terminal_sane() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    text = b""
    while not re.search(rb"[1-9]\d*/1,000", text):  # a refresh after the first report
        text += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    while not text.endswith(b"interrupted\r\n"):
        text += os.read(ours, 4096)
    os.close(ours)
    assert b"\x1b[2Kinterrupted" in text  # on the line from which the table was erased
    assert text.rfind(b"\x1b[?25h") > text.rfind(b"\x1b[?25l")
