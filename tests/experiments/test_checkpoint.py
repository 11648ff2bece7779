"""Checkpoints that are written while the run goes on."""

from pathlib import Path
from threading import Event
from typing import Any

import pytest
from e2e import tiny
from equivalence.runs import BRISK, drive, objects

from fedgmr.experiments.checkpoint import Checkpoint, CheckpointWriter, checkpoints_of
from fedgmr.federation import federate


class Part:
    """Stands for a checkpoint whose writing is looked at."""

    def __init__(self, name: str, gate: Event | None = None, error: Exception | None = None) -> None:
        self.name, self.gate, self.error = name, gate, error

    def write(self, run: Path, *, keep: int) -> None:
        assert self.gate is None or self.gate.wait(60)
        if self.error is not None:
            raise self.error
        files = sorted(path.name for path in run.iterdir())
        (run / self.name).write_text(f"{keep} {files}")


def test_nothing_of_it_changes_while_the_run_goes_on(tmp_path: Path) -> None:
    run = objects(tiny.normed(), "fedgmr", BRISK)
    drive(run, ticks=6)
    taken = Checkpoint.of(run.server, run.fleet, recorded=3)
    places = [tmp_path / "at once", tmp_path / "later"]
    for place in places:
        place.mkdir()
    taken.write(places[0], keep=1)
    federate(run.server, run.fleet, seconds=1e9, stop=lambda: run.server.tick == 12, resumed=True)
    taken.write(places[1], keep=1)
    (first,), (second,) = map(checkpoints_of, places)
    assert first.name == second.name == "tick-000000006.safetensors"
    assert first.read_bytes() == second.read_bytes()


def test_the_run_goes_on_and_waits_for_one_at_a_time(tmp_path: Path) -> None:
    gate, writer = Event(), CheckpointWriter(tmp_path, keep=2)
    parts: list[Any] = [Part("a", gate), Part("b")]

    def copy() -> Any:
        assert (tmp_path / "a").read_text() == "2 []", "there would be two copies"
        return parts[1]

    writer.begin(lambda: parts[0])
    assert list(tmp_path.iterdir()) == []
    gate.set()
    writer.begin(copy)
    writer.close()
    assert (tmp_path / "b").read_text() == "2 ['a']"


def test_what_goes_wrong_is_told_once(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep=2)
    parts: list[Any] = [Part("a", error=OSError("no space left")), Part("b")]
    writer.begin(lambda: parts[0])
    with pytest.raises(OSError, match="no space left"):
        writer.begin(lambda: parts[1])
    writer.begin(lambda: parts[1])
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
