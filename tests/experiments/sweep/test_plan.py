"""What a store holds is found by what it says, and not done again."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiments.sweep.runs import left, small
from fedgmr.experiments.run import run_recipe
from fedgmr.experiments.sweep import exit_code, find_finished, perform_sweep, plan_sweep, recipe_key, run_sweep
from fedgmr.experiments.sweep.plan import run_name
from fedgmr.experiments.sweep.work import Outcome
from fedgmr.recipe import recipe_from
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.refusals import SettingError


@dataclass
class Ticks(Watcher):
    """A watcher of one run."""

    seen: list[float]

    def after_tick(self, state: Any) -> None:
        self.seen.append(state["tick"])


class Log:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []
        self.ticks: dict[str, list[float]] = {}

    def begin(self, name: str, label: str, seconds: float) -> "Ticks":
        self.lines.append(("began", label, f"{seconds:g}"))
        return Ticks(self.ticks.setdefault(name, []))

    def end(self, name: str, status: str, accuracy: float | None) -> None:
        self.lines.append(("ended", name.split("-")[1], status))


def test_a_sweep_runs_what_is_missing_resumes_and_repeats_nothing(tmp_path: Path) -> None:
    store, first, second = tmp_path / "store", small(), small("fedavg")
    log = Log()
    paths = run_sweep([first, second, first], store, watcher=log)
    key = recipe_key(first)
    assert paths[0] == paths[2] == store / f"small-fedgmr-s3-{key}"
    assert paths[1] == store / f"small-fedavg-s3-{recipe_key(second)}"
    assert log.lines == [
        ("began", "FedGMR seed 3", "120"),
        ("ended", "fedgmr", "finished"),
        ("began", "FedAvg seed 3", "120"),
        ("ended", "fedavg", "finished"),
    ]
    ticks = log.ticks[paths[0].name]
    assert ticks == list(range(1, len(ticks) + 1))

    # As if it had been interrupted: it goes on from its checkpoint, and ends as before.
    whole = left(paths[0])
    for name in ("summary.json", "model.safetensors"):
        (paths[0] / name).unlink()
    max((paths[0] / "checkpoints").iterdir()).unlink()  # the newest, of the very last tick
    log = Log()
    plan = plan_sweep([first, second], store)
    assert [run.status for run in plan] == ["interrupted", "finished"]
    assert [outcome.status for outcome in perform_sweep(plan, watcher=log)] == ["finished", "finished"]
    assert [line[0] for line in log.lines] == ["began", "ended"]
    resumed = log.ticks[paths[0].name]
    assert resumed == ticks[-len(resumed) :]
    assert len(resumed) < len(ticks)
    assert left(paths[0]) == whole

    log, before = Log(), (paths[0] / "summary.json").stat().st_mtime_ns
    assert run_sweep([first, second, first], store, watcher=log) == paths
    assert log.lines == []
    assert (paths[0] / "summary.json").stat().st_mtime_ns == before


def test_runs_are_found_elsewhere_under_other_names_and_other_devices(tmp_path: Path) -> None:
    recipe, other = small(), small("fedgmr", "seed=9")
    run_recipe(small("fedgmr", "name=else", "checkpoint.every=5", "device=cpu"), tmp_path / "results" / "a" / "b")
    shutil.copytree(tmp_path / "results" / "a" / "b", tmp_path / "results" / "broken")
    (tmp_path / "results" / "broken" / "recipe.yaml").write_text("nonsense: true\n")
    (tmp_path / "store").mkdir()
    broken = re.escape(str(tmp_path / "results" / "broken"))
    sentence = rf"^The run in '{broken}' cannot be read and does not count: nonsense is not a known key: choose one of"
    with pytest.warns(UserWarning, match=sentence):
        found = find_finished([recipe, other], [tmp_path / "nothing", tmp_path / "results"])
    assert found == {recipe_key(recipe): tmp_path / "results" / "a" / "b"}
    with pytest.warns(UserWarning, match=sentence):
        plan = plan_sweep([recipe, other], tmp_path / "store", also=[tmp_path / "results"])
    assert [run.status for run in plan] == ["finished", "missing"]
    assert plan[0].directory == tmp_path / "results" / "a" / "b"
    assert list((tmp_path / "store").iterdir()) == []

    # What is not finished elsewhere is left alone; in the store it is taken up, whatever its name.
    (tmp_path / "results" / "a" / "b" / "summary.json").unlink()
    (plan,) = plan_sweep([recipe], tmp_path / "store", also=[tmp_path / "results"])
    assert (plan.status, plan.directory.parent) == ("missing", tmp_path / "store")
    (plan,) = plan_sweep([recipe], tmp_path / "results")
    assert (plan.status, plan.directory) == ("interrupted", tmp_path / "results" / "a" / "b")


def test_a_diverged_run_is_told_and_not_repeated(tmp_path: Path) -> None:
    wild = small("fedavg", "training.learning_rate=1e38", "training.steps=4")
    plan = plan_sweep([wild, small()], tmp_path)
    with pytest.warns(UserWarning, match=r"small-fedavg-s3-\w{12}: The training of client \d+ diverged"):
        outcomes = perform_sweep(plan)
    assert [outcome.status for outcome in outcomes] == ["diverged", "finished"]
    assert exit_code(outcomes) == 3
    log = Log()
    again = plan_sweep([wild, small()], tmp_path)
    assert [run.status for run in again] == ["diverged", "finished"]
    with pytest.warns(UserWarning, match="diverged"):
        assert perform_sweep(again, watcher=log) == [outcomes[0], Outcome(status="finished")]
    assert log.lines == []


def test_a_run_that_cannot_be_does_not_keep_the_others_from_theirs(tmp_path: Path) -> None:
    greedy = small("fedgmr", "evaluation.validation=clients", "evaluation.client_holdout=0.999")
    with pytest.warns(UserWarning, match=r"client_holdout is 0.999"):
        outcomes = perform_sweep(plan_sweep([greedy, small()], tmp_path))
    assert [outcome.status for outcome in outcomes] == ["refused", "finished"]
    assert exit_code(outcomes) == 2
    with pytest.raises(SettingError, match=r"^evaluation.client_holdout is 0.999: client \d has only \d+ samples"):
        perform_sweep(plan_sweep([greedy], tmp_path))
    with pytest.raises(SettingError, match=r"^--jobs is 0: give at least 1.$"):
        perform_sweep(plan_sweep([greedy], tmp_path), jobs=0)


def test_a_defect_in_one_run_does_not_keep_the_others_from_theirs_in_this_process_either(tmp_path: Path) -> None:
    broken = small("fedgmr", "task={name: 'experiments.sweep.mortal:broken'}")
    with pytest.warns(UserWarning, match=r"(?s)Traceback .*TypeError: a defect of the program"):
        outcomes = perform_sweep(plan_sweep([broken, small()], tmp_path / "store"))
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    assert exit_code(outcomes) == 1
    options = f"{{count: {tmp_path}/count}}"
    greedy = small("fedgmr", f"task={{name: 'experiments.sweep.mortal:out_of_memory', options: {options}}}")
    with pytest.raises(MemoryError):
        perform_sweep(plan_sweep([greedy], tmp_path / "store"))


def test_exit_codes() -> None:
    def code(*statuses: str) -> int:
        return exit_code([Outcome(status=status) for status in statuses])  # type: ignore[arg-type]

    assert [code(), code("finished"), code("finished", "diverged")] == [0, 0, 3]
    assert [code("diverged", "died"), code("failed", "finished"), code("refused", "died", "diverged")] == [1, 1, 2]


def test_names_of_directories_are_names() -> None:
    data = {"name": "a/b c", "seconds": 1, "task": "mnist5k", "method": "fedgmr"}
    assert run_name(recipe_from(data), "012345678901") == "a.b.c-fedgmr-s0-012345678901"
    named = run_name(recipe_from(data), "012345678901", ["rate-0.1", "partition-{kind: ../dirichlet}", "x" * 300])
    assert named.startswith("a.b.c-fedgmr-rate-0.1-partition-.kind.")
    assert "/" not in named
    assert len(named) < 150
