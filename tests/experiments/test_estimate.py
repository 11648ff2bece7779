"""How long runs will take: by earlier runs, the pace by hand, and a probe of a task that trains in milliseconds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from paper.conftest import HIGH

from experiments.sweep.runs import small
from fedgmr.experiments.assembly import make_task
from fedgmr.experiments.estimate import Estimate, Probe, count_updates, estimate_runs, time_recipes
from fedgmr.experiments.rundir import create_run, resolved_text
from fedgmr.experiments.sweep import describe_plan, plan_sweep
from fedgmr.paper.grid import recipe_for
from fedgmr.recipe import Recipe
from fedgmr.settings.schema import plain
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.task import Task

TINY = ["task=e2e.tiny:dense", "fleet.scale=1e-4", "seconds=100", "partition=iid"]


def test_pace() -> None:
    layout = Layout.of(Conv2())
    # A period is 9.4727 s, so 375 s have 39 merges, to which all ten clients come but for noise.
    updates, merges = count_updates(recipe_for(HIGH, "fedgmr", protocol="paper", short=True), layout)
    assert merges == pytest.approx(39, abs=0.7)
    assert sum(updates) == pytest.approx(390, rel=0.02)
    assert updates == pytest.approx([234, 39, 39, 39, 39], rel=0.05)  # six of the ten hold a twentieth
    # 80,000 s have 8,445; only some of them are counted.
    assert count_updates(recipe_for(HIGH, "fedgmr", protocol="paper"), layout)[1] == pytest.approx(
        80_000 / 9.472743, rel=1e-3
    )
    # A full model down to and up from a 1 / 0.25 MiB/s client takes 26 + 0.5 + 104 s, and the last has to wait for
    # nine others at 2.6 s each: 157 s.
    updates, merges = count_updates(recipe_for(HIGH, "fedavg", protocol="paper"), layout)
    assert merges == pytest.approx(80_000 / 157, rel=0.05)
    assert updates == pytest.approx([10 * merges])


def test_pace_of_those_who_take_part_and_are_there() -> None:
    def pace(*overrides: str) -> tuple[float, float]:
        recipe = recipe_for(HIGH, "fedgmr_without_restoration", protocol="paper", overrides=overrides)
        updates, merges = count_updates(recipe, Layout.of(Conv2()))
        return sum(updates) / merges, merges

    assert pace("participation.count=2") == (pytest.approx(2, rel=0.02), pytest.approx(80_000 / 9.472743, rel=1e-3))
    assert pace("participation.fraction=0.3", "method=fedasync")[0] == pytest.approx(1)
    eight = "fleet.absences=[{clients: [0, 1, 2, 3, 4, 5, 6, 7], start: 0, end: 90000}]"
    assert pace(eight)[0] == pytest.approx(2, rel=0.02)
    # A day of 2,000 s, half of it night: what is counted are 474 s of the first morning.
    night = "fleet.availability={kind: day_night, day: 0.5555555555555556, night: 0.2777777777777778, spread: 0}"
    assert pace(night)[0] == pytest.approx(5, rel=0.03)
    recipe = recipe_for(HIGH, "fedgmr", overrides=[*TINY, eight.replace("7]", "7, 8, 9]").replace("90000", "50")])
    assert len(Probe.measure(recipe, make_task(recipe)).updates) == 5, "nobody is there at first"


def test_seconds_of_a_run_by_hand() -> None:
    layout = Layout.of(Conv2())
    recipe = recipe_for(HIGH, "fedgmr_without_restoration", short=True, overrides=["evaluation.every_seconds=37.5"])
    each = (0.1, 0.1, 0.1, 0.1, 1.0)  # a whole client's tasks take longer
    probed = Probe(layout=layout, updates=each, sample=0.001, test=1000, validation=500)
    *others, whole = count_updates(recipe, layout)[0]
    training = 0.1 * sum(others) + whole
    # Twelve evaluations of merged, padded and a tenth of the time four levels, on 1,000 + 500 samples each.
    assert probed.run_seconds(recipe) == pytest.approx(training + 12 * 2.4 * 1.5)
    alone = replace(recipe, evaluation=replace(recipe.evaluation, views="merged"))
    assert probed.run_seconds(alone) == pytest.approx(training + 12)
    restored = recipe_for(HIGH, "fedgmr", short=True, overrides=["evaluation.every_seconds=37.5"])
    # And at every tenth merge four sub-models below the whole one on half as many samples.
    checks = count_updates(restored, layout)[1] / 10
    assert probed.run_seconds(restored) == pytest.approx(training + 12 * 2.4 * 1.5 + checks * 4 * 0.5)


def test_a_probe_and_what_it_says() -> None:
    recipe = recipe_for(HIGH, "fedgmr", overrides=TINY)
    probed = Probe.measure(recipe, make_task(recipe))
    assert (probed.test, probed.validation) == (96, 24)
    assert all(0 < seconds < 60 for seconds in probed.updates)
    assert len(probed.updates) == 5
    assert probed.sample > 0
    other = recipe_for(HIGH, "fedgmr", seed=1, overrides=TINY)
    first, second = time_recipes([plain(recipe), plain(other)])
    assert first is not None
    assert first == second > 0


def test_a_probe_counts_the_samples_that_the_recipe_evaluates() -> None:
    fewer = ["evaluation.test_samples=40", "evaluation.validation_samples=7"]
    recipe = recipe_for(HIGH, "fedgmr", overrides=[*TINY, *fewer])
    probed = Probe.measure(recipe, make_task(recipe))
    assert (probed.test, probed.validation) == (40, 7)


def test_methods_that_train_alike_are_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []
    measure = Probe.measure

    def noted(recipe: Recipe, task: Task) -> Probe:
        probed.append(recipe.method.name)
        return measure(recipe, task)

    monkeypatch.setattr(Probe, "measure", noted)
    methods = ("fedgmr", "fedgmr_without_restoration", "fedavg", "fedasync", "fiarse")
    seconds = time_recipes([plain(recipe_for(HIGH, method, overrides=TINY)) for method in methods])
    assert probed == ["fedgmr", "fedavg", "fiarse"]
    assert all(value is not None and value > 0 for value in seconds)


def test_a_recipe_that_cannot_be_run_leaves_the_others_known() -> None:
    broken = recipe_for(HIGH, "fedgmr", overrides=[*TINY, "evaluation.validation_samples=1000000"])
    first, second = time_recipes([plain(broken), plain(recipe_for(HIGH, "fedgmr", overrides=TINY))])
    assert first is None
    assert second is not None


def finished(store: Path, name: str, recipe: Recipe, *, wall: float, device: str = "CPU") -> None:
    create_run(store / name, resolved_text(recipe))
    numbers = ("seconds", "tick", "accuracy", "loss", "bytes_server", "in_flight", "wall")
    lists = ("density", "level", "staleness", "updates", "bytes_down", "bytes_up")
    row = dict.fromkeys(numbers, 0) | {name: [0] for name in lists}
    (store / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    ended = {"schema_version": 1, "status": "finished", "device": device}
    summary = {**ended, "seconds": recipe.seconds, "wall_seconds": wall}
    (store / name / "summary.json").write_text(json.dumps(summary))


def test_from_runs_that_went_before(tmp_path: Path) -> None:
    # 0.5 and 0.25 wall seconds per virtual second for FedGMR, 0.1 for FedAvg; a GPU says nothing about a CPU.
    finished(tmp_path, "a", small("fedgmr", "device=cpu"), wall=60.0)
    finished(tmp_path, "b", small("fedgmr", "device=cpu", "seed=9"), wall=30.0)
    finished(tmp_path, "c", small("fedavg", "device=cpu"), wall=12.0)
    finished(tmp_path, "d", small("fedgmr", "seed=10"), wall=1.0, device="NVIDIA H200")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "summary.json").write_text("{}")

    longer = small("fedgmr", "device=cpu", "seconds=1000")
    other = small("fedavg", "device=cpu", "seconds=300", "seed=4")
    plan = plan_sweep([longer, other, small("fedgmr", "device=cpu")], tmp_path)
    estimate = estimate_runs(plan, [tmp_path])
    assert estimate.seconds == {plan[0].name: pytest.approx(1000 * 0.375), plan[1].name: pytest.approx(30)}
    assert estimate.text(1) == "About 7 min, going by earlier runs."
    assert estimate.text(2) == "About 6 min with 2 at once, going by earlier runs."  # not less than its longest run
    assert describe_plan(plan) == "3 runs: 1 finished, 2 to start."


def test_an_interrupted_run_goes_by_itself(tmp_path: Path) -> None:
    recipe = small("fedgmr", "seconds=1000")
    (run,) = plan_sweep([recipe], tmp_path)
    create_run(run.directory, resolved_text(recipe))
    rows = [json.dumps({"seconds": 0.0, "wall": 0.2}), json.dumps({"seconds": 400.0, "wall": 100.0}), '{"seconds": 44']
    (run.directory / "metrics.jsonl").write_text("\n".join(rows))
    plan = plan_sweep([recipe], tmp_path)
    estimate = estimate_runs(plan, [tmp_path])
    assert estimate.seconds == {run.name: pytest.approx(600 * 0.25)}
    assert (describe_plan(plan), estimate.text(1)) == ("1 run: 1 interrupted.", "About 2 min, going by earlier runs.")


def test_what_nobody_has_run_is_timed(tmp_path: Path) -> None:
    # Other settings and another method than the run that went before say nothing.
    finished(tmp_path, "a", small("fedgmr", "training.steps=7"), wall=1e9)
    broken = small("fedgmr", "evaluation.validation_samples=1000000")
    plan = plan_sweep([small("fedgmr"), small("fedgmr", "seed=5"), broken], tmp_path)
    estimate = estimate_runs(plan, [tmp_path])
    assert estimate.timed
    first, second, third = (estimate.seconds[run.name] for run in plan)
    assert first is not None
    assert first == second
    assert 0 < first < 600
    assert third is None
    assert estimate.text(1) == "How long it takes is not known."
    known = Estimate(seconds={"a": 80.0}, timed=True)
    assert known.text(1) == "About 80 s, after a short trial."
    assert Estimate(seconds={}, timed=False).text(1) == ""
