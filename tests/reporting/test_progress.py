import io
import os
import time

import pytest

from fedgmr.reporting import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def width(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    size = {"columns": 120}
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((size["columns"], 24)))
    return size


STATE = {"tick": 131, "accuracy": 0.934, "density": 0.42, "bytes_up": 12_300_000, "bytes_down": 40_100_000}


def drawn(stream: io.StringIO) -> list[str]:
    return [line.rstrip() for line in stream.getvalue().split("\r") if line.strip()]


def test_the_line(width: dict[str, int]) -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(total_seconds=2850, stream=stream, clock=clock)
    progress.update(seconds=1163.3, **STATE)
    clock.now += 1.0
    progress.update(seconds=1240.0, **STATE)
    first, second = drawn(stream)
    assert first.endswith("ETA -:--")
    # 1610 s are left at 76.7 per second
    assert second == ("fedgmr  1,240/2,850 s  tick 131  acc 93.4 %  density 0.42  up 12.3 MB  down 40.1 MB  ETA 0:21")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (94, "fedgmr  1,240/2,850 s  tick 131  acc 93.4 %  density 0.42  up 12.3 MB  down 40.1 MB  ETA -:--"),
        (93, "fedgmr  1,240/2,850 s  acc 93.4 %  density 0.42  up 12.3 MB  down 40.1 MB  ETA -:--"),
        (80, "fedgmr  1,240/2,850 s  acc 93.4 %  up 12.3 MB  down 40.1 MB  ETA -:--"),
        (50, "fedgmr  1,240/2,850 s  acc 93.4 %  ETA -:--"),
        (21, "fedgmr  1,240/2,850"),
    ],
)
def test_line_fits_the_terminal(width: dict[str, int], columns: int, expected: str) -> None:
    width["columns"] = columns
    stream = Terminal()
    Progress(total_seconds=2850, stream=stream).update(seconds=1240.0, **STATE)
    assert drawn(stream) == [expected]
    assert len(expected) < columns


def test_a_shorter_line_blanks_the_longer_one(width: dict[str, int]) -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(total_seconds=100, stream=stream, clock=clock)
    progress.update(seconds=10, **STATE)
    clock.now += 1
    progress.update(seconds=20, tick=1)
    _, first, second = stream.getvalue().split("\r")
    assert len(second) == len(first)
    progress.close("done")
    assert stream.getvalue().endswith("\r" + " " * len(second.rstrip()) + "\rdone\n")


def test_terminal_is_drawn_at_most_five_times_a_second(width: dict[str, int]) -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(total_seconds=1000, stream=stream, clock=clock)
    for step in range(2000):
        clock.now = 100.0 + step / 1000
        progress.update(seconds=step, tick=step)
    assert len(drawn(stream)) == 10


def test_elsewhere_a_plain_line_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(total_seconds=100, label="run-7", stream=stream, clock=clock)
    for step in range(35):
        clock.now = 100.0 + step
        progress.update(seconds=step, tick=step)
    progress.close("finished: 93.4 %")
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines[:-1]] == ["0/100 s", "10/100 s", "20/100 s", "30/100 s"]
    assert lines[1] == "run-7  10/100 s  tick 10  up 0.00 MB  down 0.00 MB  ETA 1:30"
    assert lines[-1] == "finished: 93.4 %"
    assert "\r" not in stream.getvalue()


def test_remaining_time_counts_from_the_first_report_and_is_smoothed(width: dict[str, int]) -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(total_seconds=10_000, stream=stream, clock=clock)
    progress.update(seconds=5000, tick=1)  # resumed: these seconds say nothing about the speed
    clock.now += 1
    progress.update(seconds=5001, tick=2)
    assert drawn(stream)[-1].endswith("ETA 1:23:19")  # 4999 s at 1 per second
    clock.now += 1
    progress.update(seconds=5101, tick=3)
    # speed 1 -> 1 + (1 - exp(-0.1)) * 99 = 10.42; 4899 / 10.42 = 470 s
    assert drawn(stream)[-1].endswith("ETA 7:50")


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    progress = Progress(total_seconds=10, stream=stream, quiet=True)
    progress.update(seconds=1, tick=1)
    progress.close("done")
    assert stream.getvalue() == ""


def test_close_is_final(width: dict[str, int]) -> None:
    stream = Terminal()
    progress = Progress(total_seconds=10, stream=stream)
    progress.close("done")
    progress.close("again")
    progress.update(seconds=5, tick=1)
    assert stream.getvalue() == "done\n"


def test_default_stream_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(total_seconds=10)
    progress.update(seconds=1, tick=1)
    assert capsys.readouterr().err.startswith("fedgmr  1/10 s")


def test_stream_without_a_file_is_taken_as_eighty_columns() -> None:
    class Bare(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Bare()
    Progress(total_seconds=2850, stream=stream).update(seconds=1240.0, **STATE)
    assert 60 < len(drawn(stream)[0]) < 80


def test_updates_that_are_not_due_are_cheap() -> None:
    progress = Progress(total_seconds=1e9, stream=io.StringIO())
    started = time.perf_counter()
    for step in range(100_000):
        progress.update(seconds=step, tick=step, accuracy=0.5, density=0.5, bytes_up=step, bytes_down=step)
    assert time.perf_counter() - started < 1.0  # 10 microseconds each would still be slow
