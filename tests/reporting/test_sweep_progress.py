"""The progress line of a sweep: counts, virtual seconds, and the time left at the pace so far."""

import io

from fedgmr.reporting.sweep_progress import RunByRun, SweepProgress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(stream: io.StringIO, **work: float) -> tuple[SweepProgress, Clock]:
    clock = Clock()
    return SweepProgress(work=work, finished=2, stream=stream, clock=clock), clock


def test_the_time_left_is_the_work_left_at_the_pace_so_far() -> None:
    shown, clock = progress(io.StringIO(), a=100.0, b=300.0, c=600.0)
    assert shown.line() == "2/5 runs done  ETA -:--"
    shown.began("a", "FedGMR seed 0", 1000.0)
    shown.began("b", "FedAvg seed 0", 1000.0)
    shown.update("a", {"seconds": 0.0})
    shown.update("b", {"seconds": 0.0})
    clock.now = 20.0
    shown.update("a", {"seconds": 500.0})  # half of 100
    shown.update("b", {"seconds": 250.0})  # a quarter of 300
    # 125 of 1000 in 20 s: 875 at 6.25 a second.
    assert shown.line() == "2/5 runs done  FedGMR seed 0 500/1,000 s  FedAvg seed 0 250/1,000 s  ETA 2:20"
    shown.ended("a", "finished")
    clock.now = 35.0
    # 175 of 1000 in 35 s: 825 at 5 a second.
    assert shown.line() == "3/5 runs done  FedAvg seed 0 250/1,000 s  ETA 2:45"
    shown.ended("b", "diverged")  # neither done nor left
    # 100 of 700 in 35 s.
    assert shown.line() == "4/5 runs done  ETA 3:30"


def test_what_was_done_before_says_nothing_about_the_pace() -> None:
    shown, clock = progress(io.StringIO(), a=100.0)
    shown.began("a", "FedGMR seed 0", 1000.0)
    shown.update("a", {"seconds": 800.0})  # resumed
    assert shown.line().endswith("ETA -:--")
    clock.now = 10.0
    shown.update("a", {"seconds": 900.0})
    assert shown.line().endswith("ETA 0:10")


def test_elsewhere_than_on_a_terminal_a_line_now_and_then_and_at_every_end() -> None:
    stream = io.StringIO()
    shown, clock = progress(stream, a=1.0, b=1.0)
    shown.began("a", "FedGMR seed 0", 10.0)
    for second in range(70):
        clock.now = float(second)
        shown.update("a", {"seconds": second / 10})
    shown.ended("a", "finished")
    shown.clear()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3 + 1  # at 0, 30 and 60 seconds, and at the end
    assert lines[-1] == "3/4 runs done  ETA 1:09"
    assert "\r" not in stream.getvalue()


def test_on_a_terminal_one_line_within_its_width() -> None:
    stream = Terminal()
    shown, _ = progress(stream, **{f"run{number}": 1.0 for number in range(9)})
    for number in range(9):
        shown.began(f"run{number}", f"FedGMR seed {number}", 1000.0)
    shown.clear()
    drawn = stream.getvalue().split("\r")
    assert "\n" not in stream.getvalue()
    assert max(map(len, drawn)) == 79
    assert drawn[-2:] == [" " * 79, ""]


def test_run_by_run_is_the_progress_line_of_each(capsys: object) -> None:
    shown = RunByRun()
    state = {"seconds": 5.0, "tick": 1, "accuracy": 0.5, "density": 0.1, "bytes_up": 1e6, "bytes_down": 2e6}
    for name in ("a", "b"):
        shown.began(name, f"FedGMR {name}", 10.0)
        shown.update(name, state)
        shown.ended(name, "finished")
    lines = capsys.readouterr().err.splitlines()  # type: ignore[attr-defined]
    assert [line.split("  ")[:2] for line in lines] == [["FedGMR a", "5/10 s"], ["FedGMR b", "5/10 s"]]
