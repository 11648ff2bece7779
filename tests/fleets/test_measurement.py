"""Rates from bytes and times, by hand; and densities measured in a simulation against the presets they should find."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgmr.exchange import News, Shipment
from fedgmr.experiments.assembly import assemble, make_task, resolve
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.federation import federate
from fedgmr.fleets.measurement import SIMULATED, LinkEstimate, Meter, Prior
from fedgmr.fleets.network import MIB
from fedgmr.fleets.sizes import WireSizes
from fedgmr.recipe import recipe_from
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.levels import LevelMap

EXACT = Prior(overhead=5.0, deviation=100.0, jitter=1e-6, noise=0.0)


def test_three_observations_give_overhead_and_both_rates() -> None:
    estimate = LinkEstimate(EXACT)
    estimate.observe(down=0, up=0, seconds=4.0)  # a hello: 4 s
    estimate.observe(down=MIB, up=0, seconds=6.0)  # a probe: 2 s per MiB
    estimate.observe(down=MIB, up=MIB // 2, seconds=11.0)  # a task: 5 s for half a MiB
    assert estimate.mean == pytest.approx([4.0, 2.0, 10.0], rel=1e-3)
    assert estimate.seconds(down=3 * MIB, up=2 * MIB) == pytest.approx(4 + 6 + 20, rel=1e-3)


def test_a_task_is_expected_to_take_as_long_as_the_last_one() -> None:
    """A busy machine takes 200 s for a few bytes: the filter, which knows 5 s with a deviation of 3, believes 8 s."""
    levels = LevelMap(torch.zeros(4, dtype=torch.uint8), (1.0,))
    task = Shipment(client=2, level=0, levels=levels, map_version=0, first_batch=0)
    meter = Meter(Prior(overhead=5.0, deviation=3.0, jitter=1.0, noise=0.1), WireSizes(buffers=0))
    assert meter.expected(2, down=100, up=100) is None
    meter.observe(task, down=100, up=100, seconds=200.0, training=0.5)
    assert meter.estimates[2].seconds(down=100, up=100) < 15.0
    assert meter.expected(2, down=100, up=100) == 200.0
    again = Meter(meter.prior, WireSizes(buffers=0))
    again.restore(meter.state())
    assert again.expected(2, down=100, up=100) == 200.0
    again.restore([row[:5] for row in meter.state()])  # of an earlier release
    assert again.expected(2, down=100, up=100) < 15.0
    meter.observe(task, down=100, up=100, seconds=6.0, training=0.5)
    assert meter.expected(2, down=100, up=100) < 15.0


def test_what_cannot_be_told_apart_still_predicts_their_sum() -> None:
    estimate = LinkEstimate(Prior(overhead=0.0, deviation=0.0, jitter=1e-6, noise=0.0))
    estimate.observe(down=MIB, up=MIB, seconds=12.0)
    assert estimate.seconds(down=10 * MIB, up=10 * MIB) == pytest.approx(120.0, rel=1e-3)
    assert estimate.mean == pytest.approx([0.0, 6.0, 6.0], rel=1e-3), "half of it to each, as nothing says otherwise"


def test_a_link_that_changes_is_followed() -> None:
    estimate = LinkEstimate(Prior(overhead=5.0, deviation=3.0, jitter=1.0, noise=0.1))
    for _ in range(10):
        estimate.observe(down=4 * MIB, up=4 * MIB, seconds=5.0 + 20.0)
    assert estimate.seconds(down=8 * MIB, up=8 * MIB) == pytest.approx(45.0, rel=0.1)
    for _ in range(20):
        estimate.observe(down=4 * MIB, up=4 * MIB, seconds=5.0 + 80.0)
    assert estimate.seconds(down=4 * MIB, up=4 * MIB) == pytest.approx(85.0, rel=0.1)


@pytest.mark.parametrize("prior", [SIMULATED, Prior(overhead=5.0, deviation=3.0, jitter=1.0, noise=0.1)])
def test_a_tenth_of_the_rate_is_believed_at_the_second_task(prior: Prior) -> None:
    """A MiB each way at 1 and 0.25 MiB/s takes 5 s beside the overhead, at a tenth of these rates 50 s."""
    estimate = LinkEstimate(prior)
    for _ in range(10):
        estimate.observe(down=MIB, up=MIB, seconds=prior.overhead + 5.0)
    expected = []
    for _ in range(2):
        estimate.observe(down=MIB, up=MIB, seconds=prior.overhead + 50.0)
        expected.append(estimate.seconds(down=MIB, up=MIB))
    assert expected[0] < 0.3 * (prior.overhead + 50.0), "one slow task may be a tunnel"
    assert expected[1] == pytest.approx(prior.overhead + 50.0, rel=0.1)
    for _ in range(2):
        estimate.observe(down=MIB, up=MIB, seconds=prior.overhead + 50.0)
    assert estimate.late == 0


def test_noise_averages_out() -> None:
    estimate = LinkEstimate(Prior(overhead=5.0, deviation=3.0, jitter=1.0, noise=0.05))
    for late in itertools.islice(itertools.cycle((-1.5, 0.5, 2.0, -1.0)), 40):
        estimate.observe(down=2 * MIB, up=MIB, seconds=6.0 + 30.0 + late)
    assert estimate.seconds(down=2 * MIB, up=MIB) == pytest.approx(36.0, abs=1.5)


def test_rates_are_never_negative() -> None:
    estimate = LinkEstimate(EXACT)
    estimate.observe(down=0, up=0, seconds=9.0)
    estimate.observe(down=MIB, up=MIB, seconds=5.0)  # faster than nothing
    assert (estimate.mean >= 0).all()


@pytest.mark.parametrize(
    ("period", "current", "level"),
    [(10.0, 0, 2), (3.9, 0, 0), (4.0, 0, 1), (0.5, 2, 0), (100.0, 0, 3), (9.2, 2, 2), (8.9, 2, 1), (7.9, 3, 1)],
)
def test_the_largest_level_that_fits(period: float, current: int, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # 10 / 1.1 = 9.09: at 9.2 the current level 2 is kept although it takes 10, at 8.9 no longer.
    meter = Meter(EXACT, WireSizes(buffers=0), period=period)
    monkeypatch.setattr(meter, "times", lambda task: [2.0, 4.0, 10.0, 20.0])
    task = Shipment(client=3, level=current, levels=LevelMap.full(1), map_version=0, first_batch=0)
    assert meter.observe(task, down=1, up=1, seconds=1.0, training=0.0) == [News(client=3, seconds=1.0, level=level)]


def test_a_meter_assigns_by_the_sizes_of_the_levels() -> None:
    # 1,000,000 coordinates at 5 %, 50 % and 100 %: 4 bytes each way per coordinate, 1 MiB/s down, 0.5 MiB/s up.
    levels = LevelMap(
        torch.bucketize(torch.arange(1_000_000), torch.tensor([49_999, 499_999])).to(torch.uint8), (0.05, 0.5, 1.0)
    )
    task = Shipment(client=7, level=0, levels=levels, map_version=0, first_batch=0)
    sizes = WireSizes(buffers=0)
    prior = Prior(overhead=0.0, deviation=0.0, jitter=1e-6, noise=0.0)
    meter = Meter(prior, sizes, period=8.0)
    assert meter.expected(7, down=1, up=1) is None
    down, up = sizes.download(levels, [0]), sizes.update(levels, 0)
    assert down == 200_000 + 56
    took = 1.0 + down / MIB + up / MIB / 0.5
    news = meter.observe(task, down=down, up=up, seconds=took, training=1.0)
    # 50 %: 1 + 1.907 + 3.815 = 6.7 s fits 8 s; 100 %: 12.4 s does not.
    assert meter.times(task) == pytest.approx([1.572, 6.722, 12.444], rel=1e-3)
    assert news == [News(client=7, seconds=took, level=1)]
    assert meter.expected(7, down=0, up=0) == pytest.approx(1.572, rel=1e-3), "as the last one, not 1 s"
    again = Meter(prior, sizes)
    again.restore(meter.state())
    assert again.times(task) == meter.times(task)
    news = again.observe(task, down=1, up=1, seconds=1.0, training=1.0)
    assert news == [News(client=7, seconds=1.0)], "without a period no level is measured"


LEVELS = {"high": [4, 3, 0, 0, 0, 0], "low": [4, 4, 3, 2, 1, 0]}  # of their preset densities


@pytest.mark.parametrize("fleet", LEVELS)
def test_a_simulated_fleet_is_measured_to_its_classes(fleet: str) -> None:
    recipe = recipe_from(
        {
            "seconds": 1e5,
            "task": "mnist5k",
            "method": "fedgmr_without_restoration",
            "fleet": {"name": fleet, "clients": 6, "densities": "measured", "scale": "model"},
            "training": {"steps": 1, "batch_size": 2},
        }
    )
    assert [recipe.method.level_of(link.density) for link in recipe.fleet.resolved_links()] == LEVELS[fleet]
    task = make_task(recipe)
    run = assemble(resolve(recipe, task), task)
    history: list[list[int]] = []
    period = run.recipe.method.coordination.period
    federate(
        run.server, run.fleet, seconds=15.5 * period, after_tick=lambda: history.append(run.server.client_levels[:])
    )
    assert history[0] != [0] * 6, "the first tasks have told already"
    assert history[-1] == LEVELS[fleet]
    assert run.server.updates[5] > 10, "everybody's round fits the period"


def test_measured_densities_follow_a_link_that_falls_to_a_tenth() -> None:
    """The fastest client holds everything; at a tenth of its rate a tenth fits the period, and later everything."""
    recipe = recipe_from(
        {
            "seconds": 1e5,
            "task": "mnist5k",
            "method": "fedgmr_without_restoration",
            "fleet": {"name": "low", "clients": 5, "densities": "measured", "scale": "model"},
            "training": {"steps": 1, "batch_size": 2},
        }
    )
    task = make_task(recipe)
    run = assemble(resolve(recipe, task), task)
    network, history = run.fleet.network, list[tuple[int, int, int]]()
    fast = list(network.rates)
    slow = [(fast[0][0] / 10, fast[0][1] / 10), *fast[1:]]

    def after_tick() -> None:
        tick = run.server.tick
        network.rates = slow if 8 <= tick < 40 else fast
        history.append((tick, run.server.client_levels[0], run.server.updates[0]))

    federate(run.server, run.fleet, seconds=55.5 * run.recipe.method.coordination.period, after_tick=after_tick)
    level = {tick: level for tick, level, _ in history}
    updates = {tick: updates for tick, _, updates in history}
    assert (level[8], level[40], level[55]) == (4, 1, 4)
    fell = next(tick for tick in level if tick > 8 and level[tick] == 1)
    assert updates[fell] - updates[8] <= 4, "one task was on its way at the old rate, two settle it"


class _Interrupting(Watcher):
    """A watcher that ends a run."""

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def after_tick(self, state: Any) -> None:
        if state["tick"] == self.tick:
            raise KeyboardInterrupt


def test_measured_densities_survive_a_resume(tmp_path: Path) -> None:
    data = {
        "seconds": 40.0,
        "task": "e2e.tiny:dense",
        "method": "fedgmr",
        "fleet": {"name": "medium", "clients": 5, "densities": "measured", "scale": 1e-3},
        "evaluation": {"every_seconds": 2.0},
        "checkpoint": {"every": 7},
    }
    recipe = recipe_from(data)
    whole = run_recipe(recipe, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "cut", _Interrupting(17))
    resumed = resume_run(tmp_path / "cut")
    assert len({tuple(row["level"]) for row in whole.history}) > 2, "levels change on the way"
    rows = [[{**row, "wall": 0} for row in result.history] for result in (whole, resumed)]
    assert rows[0] == rows[1]


def test_measured_is_a_word_among_densities() -> None:
    with pytest.raises(SettingError, match=r"fleet\.densities is 'measure': give"):
        recipe_from({"seconds": 1, "task": "mnist5k", "method": "fedgmr", "fleet": {"densities": "measure"}})
