from pathlib import Path

import pytest
from stopwatch import Stopwatch
from tables import markdown, write_csv


class Clock:
    """Goes on by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Work:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def outer(self) -> str:
        self.clock.now += 1.0
        self.inner(2.0)
        self.inner(3.0)
        return "done"

    def inner(self, seconds: float) -> None:
        self.clock.now += seconds


def test_time_belongs_to_the_innermost_part() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    with watch.on([("outer", Work, "outer"), ("inner", Work, "inner")]), watch.part("rest"):
        clock.now += 4.0
        assert Work(clock).outer() == "done"
    assert watch.seconds == {"outer": 1.0, "inner": 5.0, "rest": 4.0}
    assert watch.calls == {"outer": 1, "inner": 2, "rest": 1}
    Work(clock).outer()
    assert watch.calls["outer"] == 1  # it is off again


def test_time_counts_when_a_part_fails() -> None:
    clock = Clock()
    watch = Stopwatch(clock)

    def fail() -> None:
        clock.now += 2.0
        raise KeyError

    with pytest.raises(KeyError), watch.part("rest"):
        watch.timed("failing", fail)()
    assert watch.seconds == {"failing": 2.0, "rest": 0.0}


def test_tables(tmp_path: Path) -> None:
    rows = [{"part": "merge", "seconds": "1.50"}, {"part": "network", "seconds": "10.00"}]
    lines = markdown(rows).splitlines()
    assert lines == [
        "| part    | seconds |",
        "|---------|--------:|",
        "| merge   |    1.50 |",
        "| network |   10.00 |",
    ]
    write_csv(tmp_path / "table.csv", rows)
    assert (tmp_path / "table.csv").read_text().split() == ["part,seconds", "merge,1.50", "network,10.00"]
