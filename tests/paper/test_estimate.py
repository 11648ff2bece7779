"""How long runs will take: the pace by hand, and a probe of a task that trains in milliseconds."""

import pytest

from fedgmr.experiments.assembly import make_task
from fedgmr.paper.estimate import Probe, estimate, predicted_pace, probe, run_seconds
from fedgmr.paper.grid import recipe_for
from fedgmr.recipe import Recipe
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.task import Task

from .conftest import HIGH

TINY = ["task=e2e.tiny:dense", "fleet.scale=1e-4", "seconds=100", "partition=iid"]


def test_pace() -> None:
    layout = Layout.of(Conv2())
    # A period is 9.4727 s, so 375 s have 39 merges, to which all ten clients come but for noise.
    pace = predicted_pace(recipe_for(HIGH, "fedgmr", short=True), layout)
    assert pace.merges == pytest.approx(39, abs=0.7)
    assert sum(pace.updates) == pytest.approx(390, rel=0.02)
    assert pace.updates == pytest.approx((234, 39, 39, 39, 39), rel=0.05)  # six of the ten hold a twentieth
    # 80,000 s have 8,445; only some of them are counted.
    assert predicted_pace(recipe_for(HIGH, "fedgmr"), layout).merges == pytest.approx(80_000 / 9.472743, rel=1e-3)
    # A full model down to and up from a 1 / 0.25 MiB/s client takes 26 + 0.5 + 104 s, and the last has to wait for
    # nine others at 2.6 s each: 157 s.
    slow = predicted_pace(recipe_for(HIGH, "fedavg"), layout)
    assert slow.merges == pytest.approx(80_000 / 157, rel=0.05)
    assert slow.updates == pytest.approx((10 * slow.merges,))


def test_seconds_of_a_run_by_hand() -> None:
    layout = Layout.of(Conv2())
    recipe = recipe_for(HIGH, "fedgmr_without_restoration", short=True, overrides=["evaluation.every_seconds=37.5"])
    each = (0.1, 0.1, 0.1, 0.1, 1.0)  # a whole client's tasks take longer
    probed = Probe(layout=layout, updates=each, sample=0.001, test=1000, validation=500)
    *others, whole = predicted_pace(recipe, layout).updates
    training = 0.1 * sum(others) + whole
    # Twelve evaluations of a second each.
    assert run_seconds(recipe, probed) == pytest.approx(training + 12)
    restored = recipe_for(HIGH, "fedgmr", short=True, overrides=["evaluation.every_seconds=37.5"])
    # And at every tenth merge four sub-models below the whole one on half as many samples.
    checks = predicted_pace(restored, layout).merges / 10
    assert run_seconds(restored, probed) == pytest.approx(training + 12 + checks * 4 * 0.5)


def test_a_probe_and_what_it_says() -> None:
    recipe = recipe_for(HIGH, "fedgmr", overrides=TINY)
    probed = probe(recipe, make_task(recipe))
    assert (probed.test, probed.validation) == (96, 24)
    assert all(0 < seconds < 60 for seconds in probed.updates)
    assert len(probed.updates) == 5
    assert probed.sample > 0
    seconds = estimate([recipe, recipe_for(HIGH, "fedgmr", seed=1, overrides=TINY)])
    assert seconds[0] == seconds[1] > 0


def test_a_probe_counts_the_samples_that_the_recipe_evaluates() -> None:
    fewer = ["evaluation.test_samples=40", "evaluation.validation_samples=7"]
    recipe = recipe_for(HIGH, "fedgmr", overrides=[*TINY, *fewer])
    probed = probe(recipe, make_task(recipe))
    assert (probed.test, probed.validation) == (40, 7)


def test_methods_that_train_alike_are_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []

    def noted(recipe: Recipe, task: Task) -> Probe:
        probed.append(recipe.method.name)
        return probe(recipe, task)

    monkeypatch.setattr("fedgmr.paper.estimate.probe", noted)
    methods = ("fedgmr", "fedgmr_without_restoration", "fedavg", "fedasync", "fiarse")
    seconds = estimate([recipe_for(HIGH, method, overrides=TINY) for method in methods])
    assert probed == ["fedgmr", "fedavg", "fiarse"]
    assert all(value > 0 for value in seconds)
