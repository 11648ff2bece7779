"""From virtual to real seconds, by hand."""

import pytest

from fedgmr.deploy.pace import pace_for_machines, pace_for_trial
from fedgmr.experiments.assembly import make_task, resolve
from fedgmr.recipe import Recipe, load_recipe
from fedgmr.settings.refusals import SettingError


def quickstart(*overrides: str) -> Recipe:
    return load_recipe("quickstart", overrides)


def trying(recipe: Recipe, *given: str, clients: int = 4, start: float = 4.5) -> Recipe:
    return pace_for_trial(recipe, given, clients=clients, start=start)


def test_trying_takes_thirty_ticks_by_the_speed_of_the_machine() -> None:
    recipe = trying(quickstart())
    assert recipe.method.coordination.period == 12  # 1.1 x (4 + 1.4 x 4.5) = 11.33, rounded up
    assert recipe.seconds == 360
    assert recipe.evaluation.every_seconds == 12
    assert recipe.checkpoint.every == 1
    assert len(recipe.fleet.resolved_links()) == 4
    assert trying(quickstart(), start=0.1).method.coordination.period == 5  # never less
    slow = trying(quickstart(), start=20)
    assert (slow.method.coordination.period, slow.seconds) == (36, 600)  # 1.1 x 32 = 35.2; ten minutes at most


def test_what_is_given_stays() -> None:
    words = ["seconds=40", "method.coordination.period=6", "evaluation.every_seconds=3", "checkpoint.every=7"]
    recipe = trying(quickstart(*words), *(word.partition("=")[0] for word in words))
    assert (recipe.seconds, recipe.method.coordination.period) == (40, 6)
    assert (recipe.evaluation.every_seconds, recipe.checkpoint.every) == (3, 7)
    assert trying(quickstart("method.coordination.period=6")).seconds == 180


def test_a_period_shorter_than_a_task_is_refused() -> None:
    with pytest.raises(SettingError, match=r"method.coordination.period is 4.0: .* give at least 5"):
        trying(quickstart("method.coordination.period=4"))
    # An asynchronous method has no ticks; its period only paces the learning rate.
    assert trying(quickstart("method=fedasync", "method.coordination.period=4")).seconds == 120


def test_a_synchronous_method_has_no_period() -> None:
    recipe = trying(quickstart("method=fedavg"))
    assert recipe.method.coordination.period is None
    assert (recipe.evaluation.every_seconds, recipe.seconds) == (12, 360)


def test_links_and_clients_must_agree() -> None:
    links = quickstart("fleet={name: custom, links: [{down: 1, up: 1}, {down: 2, up: 2}]}")
    with pytest.raises(SettingError, match="--clients is 3 and the recipe has 2 links: give --clients 2"):
        trying(links, clients=3)
    assert trying(links, clients=2).fleet.clients == 2


def test_machines_add_the_overhead_and_keep_the_number_of_ticks() -> None:
    simulated = resolve(quickstart(), make_task(quickstart()))
    virtual = simulated.method.coordination.period
    recipe = pace_for_machines(quickstart(), [])
    period = recipe.method.coordination.period
    assert period == pytest.approx(virtual + 1.1 * 5, abs=1e-3)
    assert recipe.seconds / period == pytest.approx(simulated.seconds / virtual, rel=1e-3)
    assert recipe.evaluation.every_seconds == period


def test_a_given_period_is_that_of_the_simulation_too() -> None:
    """2,850 s are 47.5 ticks of 60 s, simulated and deployed."""
    assert pace_for_machines(quickstart("method.coordination.period=60"), []).seconds == 2850


def test_machines_synchronous_method_keeps_its_rounds() -> None:
    period = pace_for_machines(quickstart(), []).method.coordination.period
    recipe = pace_for_machines(quickstart("method=fedavg"), [])
    assert recipe.evaluation.every_seconds == pytest.approx(period, abs=1e-3)
    assert recipe.seconds > 2850


def test_a_long_run_has_a_bounded_number_of_evaluations() -> None:
    """A row has entries for every client: 200,000 in all, or 200 rows where there are more clients."""
    month = 30 * 86_400
    recipe = trying(quickstart(f"seconds={month}", "method.coordination.period=60"), "seconds", clients=20)
    assert recipe.evaluation.every_seconds == pytest.approx(month / 10_000, abs=1e-3)
    recipe = trying(quickstart(f"seconds={month}", "method.coordination.period=60"), "seconds", clients=2000)
    assert recipe.evaluation.every_seconds == pytest.approx(month / 200, abs=1e-3)
