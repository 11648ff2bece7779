"""Runs in worker processes: what becomes of a run, or of its process, is its own affair."""

import warnings
from pathlib import Path

import pytest

from experiments.sweep.mortal import LIFE, batches
from experiments.sweep.runs import left, small
from fedgmr.experiments.sweep import exit_code, perform_sweep, plan_sweep, processes, run_sweep

MORTAL = "experiments.sweep.mortal"


def test_every_end_is_told_and_none_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "RETRIES", 1)

    def task(name: str, **options: object) -> str:
        return f"task={{name: '{MORTAL}:{name}', options: {options}}}"

    recipes = {
        "once": small("fedgmr", task("killed", count=str(tmp_path / "once"), times=1)),
        "always": small("fedgmr", task("killed", count=str(tmp_path / "always"), times=99, life=2)),
        "memory": small("fedgmr", task("out_of_memory", count=str(tmp_path / "memory"))),
        "broken": small("fedgmr", task("broken")),
        "diverged": small("fedavg", "training.learning_rate=1e38", "training.steps=4"),
        "refused": small("fedgmr", "evaluation.validation=clients", "evaluation.client_holdout=0.999"),
        "good": small("fedasync"),
    }
    plan = plan_sweep(list(recipes.values()), tmp_path / "store")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        outcomes = dict(zip(recipes, perform_sweep(plan, jobs=2), strict=True))
    names = dict(zip(recipes, (run.name for run in plan), strict=True))

    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "once": "finished",
        "always": "died",
        "memory": "finished",
        "broken": "failed",
        "diverged": "diverged",
        "refused": "refused",
        "good": "finished",
    }
    assert exit_code(list(outcomes.values())) == 2
    assert outcomes["always"].problem.startswith("Its process was killed by SIGKILL (out of memory?) 2 times")
    assert (tmp_path / "always").read_text() == "xx"  # the first try and another
    assert outcomes["broken"].problem.rstrip().endswith("TypeError: a defect of the program")
    lines = [str(warning.message) for warning in told]
    assert sum("goes on from its checkpoint" in line for line in lines) == 3  # once, always, memory
    assert any(line.startswith(f"{names['once']}: its process was killed by SIGKILL") for line in lines)
    for name in ("always", "broken", "diverged", "refused"):
        assert any(line.startswith(f"{names[name]}: {outcomes[name].problem}") for line in lines), name

    # A run whose process died is the one that was never disturbed: `count` says that it has died often enough.
    count, store = tmp_path / "once", tmp_path / "store"
    asked = batches(count)
    undisturbed = run_sweep([recipes["once"], recipes["good"]], tmp_path / "other")
    assert [left(path) for path in undisturbed] == [left(store / names[name]) for name in ("once", "good")]
    # It went on from a checkpoint: from its beginning it would have needed all it had done before once more.
    alone = batches(count) - asked
    assert alone < asked < alone + LIFE
