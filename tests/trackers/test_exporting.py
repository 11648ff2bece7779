"""The export: live runs, resumed runs, runs that nobody works on; with a tracker that keeps lists."""

import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from e2e.recipes import recipe

from fedgmr.experiments.run import run_recipe
from fedgmr.experiments.rundir import locked
from fedgmr.recipe import recipe_from
from fedgmr.reporting.run_files import RunFiles, find_runs
from fedgmr.settings.refusals import SettingError
from fedgmr.trackers.exporting import export, numbers
from fedgmr.trackers.tracker import Values


class Lists:
    """A tracker for tests."""

    def __init__(self, *, takes_back: bool) -> None:
        self.takes_back = takes_back
        self.rows: dict[str, list[Values]] = {}
        self.taken_back: list[int] = []
        self.ends: dict[str, str | None] = {}

    def begin(self, run: RunFiles) -> None:
        self.rows[run.name] = []

    def add(self, run: RunFiles, first: int, rows: Sequence[Values]) -> None:
        assert first == len(self.rows[run.name])
        self.rows[run.name] += rows

    def take_back(self, run: RunFiles, first: int) -> None:
        self.taken_back.append(first)
        del self.rows[run.name][first:]

    def flush(self) -> None:
        pass

    def end(self, run: RunFiles, summary: Mapping[str, Any]) -> None:
        self.ends[run.name] = summary.get("status")

    def close(self) -> str:
        return "a list"


class Time:
    """A clock that only `wait` moves on, with what happens at each of its seconds."""

    def __init__(self, *happenings: Callable[[], None]) -> None:
        self.now, self.happenings = 0.0, list(happenings)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.happenings:
            self.happenings.pop(0)()


def test_numbers_of_rows_by_name(finished: Path, read: Any) -> None:
    row = read(finished)[-1]
    (plain,), (whole,) = numbers([row], clients=False), numbers([row], clients=True)
    assert plain["accuracy"] == row["accuracy"]
    assert plain["views.level 0.05.loss"] == row["views"]["level 0.05"]["loss"]
    assert not any(name.startswith("clients.") for name in plain)
    assert {name: whole[name] for name in plain} == plain
    assert [whole[f"clients.{client}.density"] for client in range(5)] == row["density"]
    measured = {**row, "clients": {"accuracy": [0.1, 0.2, 0.3, 0.4, 0.5], "worst": 0.1}}
    (whole,) = numbers([measured], clients=True)
    assert (whole["clients.worst"], whole["clients.2.accuracy"]) == (0.1, 0.3)
    assert "loss" not in numbers([{**row, "loss": None}], clients=False)[0]


@pytest.mark.parametrize("takes_back", [True, False])
def test_a_resumed_run_ends_with_its_rows_once_each(takes_back: bool, run: Path, read: Any, write: Any) -> None:
    rows, summary = read(run), (run / "summary.json").read_text()
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints")
    write(run, rows[:3])
    tracker = Lists(takes_back=takes_back)
    other = [{**row, "accuracy": row["accuracy"] / 2} for row in rows]  # as from a GPU, which rounds otherwise

    def cut() -> None:  # at the rows that a checkpoint would know
        assert len(tracker.rows["first"]) == (3 if takes_back else 0), "no checkpoint has counted them"
        write(run, rows[:1])

    def again() -> None:
        write(run, [rows[0], *({**row, "wall": 99.0} for row in other[1:5])])

    def more() -> None:
        assert len(tracker.rows["first"]) == (5 if takes_back else 0)
        write(run, [rows[0], *other[1:]])
        (run / "summary.json").write_text(summary)

    # The summary is of other rows, which is none of the export's business.
    time = Time(cut, again, more)
    assert export(run, tracker, follow=True, wait=time.wait, clock=lambda: time.now) == []
    assert tracker.rows["first"] == numbers(read(run), clients=False)
    assert tracker.taken_back == ([1, 1] if takes_back else []), "the second time for the host's clock alone"
    assert tracker.ends == {"first": "finished"}
    assert time.now == 3


def test_rows_are_final_once_a_checkpoint_has_counted_them(run: Path, read: Any) -> None:
    (files,) = find_runs(run)
    assert 1 < files.final_rows() <= len(read(run))
    (run / "summary.json").unlink()
    tracker = Lists(takes_back=False)
    seen: list[int] = []
    time = Time(lambda: seen.append(len(tracker.rows["first"])))
    (unended,) = export(run, tracker, follow=True, patience=30, wait=time.wait, clock=lambda: time.now)
    assert seen == [files.final_rows()]
    assert unended.path == run
    assert len(tracker.rows["first"]) == len(read(run)), "nobody goes on with it, so this is all there is"
    assert tracker.ends == {"first": None}
    assert time.now == 30


def test_a_run_that_was_begun_anew_is_refused_where_nothing_is_taken_back(run: Path, read: Any, write: Any) -> None:
    rows = read(run)
    (run / "summary.json").unlink()
    time = Time(lambda: write(run, [{**row, "accuracy": 0.5} for row in rows]))
    with pytest.raises(SettingError, match=r"Row 0 of .* is not the one that was exported"):
        export(run, Lists(takes_back=False), follow=True, wait=time.wait, clock=lambda: time.now)


@pytest.mark.parametrize("takes_back", [True, False])
def test_a_run_that_was_removed_keeps_what_was_exported(takes_back: bool, run: Path) -> None:
    (run / "summary.json").unlink()
    (files,), tracker = find_runs(run), Lists(takes_back=takes_back)
    kept = len(files.rows()) if takes_back else files.final_rows()
    time = Time(lambda: shutil.rmtree(run))
    (unended,) = export(run.parent, tracker, follow=True, patience=30, wait=time.wait, clock=lambda: time.now)
    assert (unended.path, len(tracker.rows["first"]), tracker.ends) == (run, kept, {"first": None})


def test_mlflow_is_given_no_more_at_once_than_it_takes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package: what the client of MLflow 3 refuses, and how many values it was given."""
    given: Counter[str] = Counter()

    class Client(Mock):
        def log_batch(self, run_id: object, **values: Sequence[Any]) -> None:
            for kind, each in values.items():
                assert len(each) <= {"metrics": 1000}.get(kind, 100)
                given[kind] += len(each)

    monkeypatch.setitem(sys.modules, "mlflow", Mock(MlflowClient=Client))
    monkeypatch.setitem(sys.modules, "mlflow.entities", Mock())
    monkeypatch.delitem(sys.modules, "fedgmr.trackers.mlflow", raising=False)
    tracker = import_module("fedgmr.trackers.mlflow").MLflow(run, run / "store")
    tracker.client.search_runs = lambda *_: []
    (files,) = find_runs(run)
    levels = {f"level {number}": dict.fromkeys(("accuracy", "loss", "validation"), 0.5) for number in range(50)}
    tracker.begin(files)
    tracker.add(files, 0, numbers(files.rows() * 5, clients=True))
    tracker.end(files, {"status": "finished", "seconds": 300.0, "views": levels})
    monkeypatch.delitem(sys.modules, "fedgmr.trackers.mlflow")
    assert (given["tags"], given["params"]) == (152, len(files.settings()))
    assert given["metrics"] > 1000


def test_a_run_at_work_is_waited_for(run: Path) -> None:
    (run / "summary.json").unlink()
    (files,) = find_runs(run)
    assert not files.at_work()
    time = Time()
    with locked(run):
        assert files.at_work()

        def wait(seconds: float) -> None:
            time.now += seconds
            if time.now > 500:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export(run, Lists(takes_back=True), follow=True, patience=20, wait=wait, clock=lambda: time.now)


def test_runs_that_begin_later_below_a_directory(finished: Path, tmp_path: Path, read: Any) -> None:
    tracker = Lists(takes_back=True)
    below = tmp_path / "compared"

    def begin(name: str) -> Callable[[], None]:
        return lambda: shutil.copytree(finished, below / name) and None

    time = Time(begin("fedgmr-seed0"), begin("fedavg/seed0"))
    assert export(below, tracker, follow=True, patience=10, wait=time.wait, clock=lambda: time.now) == []
    assert list(tracker.rows) == ["fedgmr-seed0", "fedavg/seed0"]
    assert [len(rows) for rows in tracker.rows.values()] == [len(read(finished))] * 2
    assert time.now == 2 + 10


def test_following_a_live_run_ends_with_it(tmp_path: Path, read: Any) -> None:
    output = tmp_path / "live"
    made = recipe_from(recipe("dense", "fedgmr", seconds=800.0))
    work = threading.Thread(target=run_recipe, args=(made, output))
    tracker = Lists(takes_back=False)
    work.start()
    assert export(output, tracker, follow=True, wait=lambda _: work.join(0.05)) == []
    work.join()
    assert [row["seconds"] for row in tracker.rows["live"]] == [row["seconds"] for row in read(output)]
    assert tracker.ends == {"live": "finished"}
