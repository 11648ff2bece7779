"""The probe: what it observes and what it decides; how long things take is made up here."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedgmr.training.sparse import break_even as module_under_test
from fedgmr.training.sparse.break_even import DENSITIES, LayerWork

WORK = LayerWork(outputs=60, inputs=50, rows=7)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(8, 6)
        self.last = nn.Linear(6, 3)
        self.idle = nn.Linear(6, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.dropout(self.each(inputs)).mean(1))
        return outputs


def test_rows_are_counted_where_they_pass() -> None:
    model = Words()
    found = LayerWork.observe(model, torch.randn(5, 11, 8))
    each, last = LayerWork(outputs=6, inputs=8, rows=55), LayerWork(outputs=3, inputs=6, rows=5)
    assert found == {model.each: each, model.last: last}, "and nothing of the layer that is not used"
    assert (each.products, last.products) == (6 * 8 * 55, 3 * 6 * 5)
    assert not model.each._forward_hooks


def test_a_layer_used_twice_and_a_convolution() -> None:
    twice, convolution = nn.Linear(4, 4), nn.Conv2d(2, 6, 3, groups=2)
    assert LayerWork.observe(nn.Sequential(twice, twice), torch.zeros(3, 4))[twice].rows == 6
    found = LayerWork.observe(convolution, torch.zeros(5, 2, 7, 8))[convolution]
    assert found == LayerWork(outputs=6, inputs=9, rows=5 * 5 * 6)


@pytest.mark.parametrize(
    ("dense", "sparse", "decision"),
    [
        (1.0, {0.3: 0.9}, 0.3),
        (1.0, {0.3: 0.96, 0.15: 0.5}, 0.15),  # it must pay by more than 5 %
        (1.0, {0.3: 2.0, 0.15: 1.5, 0.07: 1.0, 0.03: 0.1}, 0.03),
        (1.0, dict.fromkeys(DENSITIES, 1.0), 0.0),
    ],
)
def test_the_largest_density_that_pays(
    dense: float, sparse: dict[float, float], decision: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([dense, *sparse.values()])

    def seconds(step: Callable[[], None], clock: Callable[[], float]) -> float:
        step()  # what is timed can be done
        return next(times)

    monkeypatch.setattr(module_under_test, "_seconds", seconds)
    assert WORK.break_even(steps=10**6, dtype=torch.float64) == decision
    assert not list(times)


def test_building_counts_for_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A structure that takes a second: 0.2 seconds a step for five steps, 0.01 for a hundred."""
    monkeypatch.setattr(module_under_test, "_seconds", lambda step, clock: next(times))
    now = iter(range(1000))
    monkeypatch.setattr(module_under_test.time, "process_time", lambda: float(next(now)))
    times = iter([1.0, 0.8, 0.7])
    assert WORK.break_even(steps=5, dtype=torch.float32) == 0.15
    times = iter([1.0, 0.8, 0.7])
    assert WORK.break_even(steps=100, dtype=torch.float32) == 0.3


def test_it_measures_something() -> None:
    assert WORK.break_even(steps=5, dtype=torch.float32) in (0.0, *DENSITIES)
