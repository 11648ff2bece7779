"""A run that is measured by an error: everything that people read has its name, its unit and its direction."""

import math
from dataclasses import replace

import torch

import fedgmr as library
from e2e import tiny
from e2e.command import Command, write_recipe
from e2e.recipes import recipe
from fedgmr.experiments.assembly import assemble, resolve
from fedgmr.pages.watch import Watch
from fedgmr.recipe import recipe_from
from fedgmr.reporting import compare_runs, read_run

TRAINING = {"learning_rate": 0.01, "batch_size": 10, "steps": 2}


def test_a_comparison_follows_the_error(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe("numbers", seconds=120.0, training=TRAINING))
    words = ("compare", "r.json", "--methods", "fedgmr,fedavg", "output=both")
    ended = fedgmr(*words, "--target", "4.5")
    assert ended.code == 0, ended.err
    header, _, *rows = ended.out[ended.out.index("method  ") :].splitlines()[:4]
    assert "MAE (kWh) at 120 s" in header
    assert "time to 4.5 kWh" in header
    assert "MAE after 120 s" in ended.out
    assert "%" not in ended.out
    runs = {path.name: read_run(path) for path in (fedgmr.folder / "both").iterdir() if path.is_dir()}
    best, other = sorted(runs.values(), key=lambda run: run.final_accuracy)
    assert [row.split()[0] for row in rows] == [best.title, other.title], "the smallest error first"
    assert f"{best.final_accuracy:.3f} ± -" in rows[0]
    for run in runs.values():
        reached = [row["seconds"] for row in run.history if row["accuracy"] <= 4.5]
        assert run.time_to(4.5) == min(reached, default=None)
        assert run.history["MAE"] == run.history["accuracy"]
        assert run.history.table()[-1]["MAE"] == run.final_accuracy < run.history.accuracy[0]
        assert run.history[-1]["metrics"]["RMSE"] > run.final_accuracy
        assert [reading["name"] for reading in run.summary["readings"]] == ["MAE", "RMSE"]
        assert run.summary["final_metrics"] == {"MAE": run.final_accuracy, **run.history[-1]["metrics"]}
        views = run.summary["views"]
        if len(views) > 1:
            assert views[run.summary["best_view"]]["validation"] <= views["merged"]["validation"]
    assert best.path is not None
    (entry,) = Watch([best.path]).state()["runs"]
    assert (entry["metric"]["name"], entry["metric"]["unit"], entry["metric"]["digits"]) == ("MAE", "kWh", 3)
    assert [(other["key"], other["name"]) for other in entry["others"]] == [("metric RMSE", "RMSE")]
    columns = compare_runs([best.path]).csv().splitlines()[0].split(",")
    assert {"MAE", "MAE_std", "half_MAE", "target_MAE"} <= set(columns)

    line = fedgmr("run", "r.json", "seconds=40", "output=alone")
    assert "  MAE " in line.err
    assert line.out.startswith("Final MAE ")
    refused = fedgmr("run", "r.json", "evaluation.metric=MSE").refusal()
    assert "evaluation.metric is 'MSE', and numbers does not record it" in refused


def test_the_server_sees_scores_of_which_more_is_better() -> None:
    """A model that is always 5 is off by |3 (a + b + c + d)|; one that is always 4 is not as good."""
    task, plan = tiny.numbers(seed=3), recipe_from(recipe("numbers", seconds=300.0))
    run = assemble(resolve(plan, task), task)
    held_out, _ = task.train[task.hold_out(3)[1]]
    assert isinstance(held_out, torch.Tensor)
    model = torch.zeros(run.server.layout.size)
    assert run.server.validate is not None
    for bias in (5.0, 4.0):
        model[run.server.layout.size - 1] = bias
        expected = -(3 * held_out[:, :4].sum(1) + 5 - bias).abs().mean().item()
        assert math.isclose(run.server.validate(model, torch.empty(0))(), expected, rel_tol=1e-5)
    assert task.metrics[0].scores == (-math.inf, 0.0), "no error is under 0"


def test_an_error_that_is_not_finite_is_null() -> None:
    task = tiny.numbers()
    wild = replace(task, test=replace(task.test, targets=torch.full_like(task.test.targets, math.inf)))
    result = library.simulate(
        wild, method="fedavg", fleet=[library.Link(down=1.0, up=1.0)], seconds=1.0, progress=False, training=TRAINING
    )
    assert result.history["accuracy"][-1] is None
    assert math.isnan(result.final_accuracy)
    assert result.summary["final_accuracy"] is None
