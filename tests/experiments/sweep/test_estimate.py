"""How long a sweep takes is told from runs that went before, and from a trial where there are none."""

import json
from pathlib import Path

import pytest

from experiments.sweep.runs import small
from fedgmr.experiments.rundir import create_run
from fedgmr.experiments.sweep import describe_plan, estimate_sweep, plan_sweep
from fedgmr.recipe import Recipe
from fedgmr.reporting.quantities import format_duration


def _finished(store: Path, name: str, recipe: Recipe, *, wall: float, device: str = "CPU") -> None:
    create_run(store / name, recipe)
    summary = {
        "status": "finished",
        "fleet": recipe.fleet.name,
        "method": recipe.method.name,
        "device": device,
        "seconds": recipe.seconds,
        "wall_seconds": wall,
    }
    (store / name / "summary.json").write_text(json.dumps(summary))


def test_from_runs_that_went_before(tmp_path: Path) -> None:
    # 0.5 and 0.25 wall seconds per virtual second for FedGMR, 0.1 for FedAvg; a GPU says nothing about a CPU.
    _finished(tmp_path, "a", small("fedgmr", "device=cpu"), wall=60.0)
    _finished(tmp_path, "b", small("fedgmr", "device=cpu", "seed=9"), wall=30.0)
    _finished(tmp_path, "c", small("fedavg", "device=cpu"), wall=12.0)
    _finished(tmp_path, "d", small("fedgmr", "seed=10"), wall=1.0, device="NVIDIA H200")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "summary.json").write_text("{}")

    same = small("fedgmr", "device=cpu", "seconds=1000")
    other = small("fedasync", "device=cpu", "seconds=300")
    plan = plan_sweep([same, other, small("fedgmr", "device=cpu")], tmp_path)
    estimate = estimate_sweep(plan, [tmp_path], trial_seconds=0)
    assert estimate.runs == {
        plan[0].name: pytest.approx(1000 * 0.375),  # the mean of its own method
        plan[1].name: pytest.approx(300 * (0.5 + 0.25 + 0.1) / 3),  # of all on this fleet
    }
    assert estimate.total(1) == pytest.approx(375 + 85)
    assert estimate.total(2) == pytest.approx(375)  # not less than its longest run
    assert describe_plan(plan, estimate, 1) == "3 runs: 1 finished, 2 to start. About 8 min, going by earlier runs."
    assert describe_plan(plan, estimate, 2).endswith("About 6 min with 2 at once, going by earlier runs.")


def test_an_interrupted_run_goes_by_itself(tmp_path: Path) -> None:
    recipe = small("fedgmr", "seconds=1000")
    (run,) = plan_sweep([recipe], tmp_path)
    create_run(run.directory, recipe)
    rows = [json.dumps({"seconds": 0.0, "wall": 0.2}), json.dumps({"seconds": 400.0, "wall": 100.0}), '{"seconds": 44']
    (run.directory / "metrics.jsonl").write_text("\n".join(rows))
    plan = plan_sweep([recipe], tmp_path)
    estimate = estimate_sweep(plan, [tmp_path], trial_seconds=0)
    assert estimate.runs == {run.name: pytest.approx(600 * 0.25)}
    assert describe_plan(plan, estimate, 1) == "1 run: 1 interrupted. About 2 min, going by earlier runs."


def test_nothing_to_go_by(tmp_path: Path) -> None:
    plan = plan_sweep([small(), small("fedavg")], tmp_path)
    unknown = estimate_sweep(plan, [tmp_path], trial_seconds=0)
    assert set(unknown.runs.values()) == {None}
    assert describe_plan(plan, unknown, 1) == "2 runs: 2 to start. How long it takes is not known."

    tried = estimate_sweep(plan, [tmp_path], trial_seconds=0.1)
    assert tried.tried
    rates = [float(seconds) for seconds in tried.runs.values() if seconds is not None]
    assert len(rates) == 2
    assert rates[0] == rates[1]  # the same task: tried once
    assert 0 < rates[0] < 600
    assert not list(tmp_path.iterdir())


def test_durations_are_rough() -> None:
    assert [format_duration(seconds) for seconds in (0.2, 40, 89, 91, 720, 5300, 5500, 12600)] == [
        "1 s",
        "40 s",
        "89 s",
        "2 min",
        "12 min",
        "88 min",
        "1.5 h",
        "3.5 h",
    ]
