import merge
import pytest
import refresh
import torch
import turns
from server.dense import mask_aware_mean
from torch import nn

from fedgmr.server.aggregation import MaskAware, Merge
from fedgmr.submodels.layout import Layout

CPU = torch.device("cpu")
LAYOUT = Layout.of(nn.Sequential(nn.Linear(60, 20), nn.Linear(20, 4)))


@pytest.mark.parametrize("densities", merge.DENSITIES)
@pytest.mark.parametrize(("maps", "count"), [("current", 1), ("current and the one before", 2), ("each another", 10)])
def test_what_is_timed_is_the_mean(densities: str, maps: str, count: int) -> None:
    model, known = merge.level_maps(LAYOUT, 10, CPU)
    held = merge.buffered(merge.Case(densities=densities, maps=maps), model, known)
    weights = [1 / (1 + client) for client in range(10)]
    found, _ = MaskAware().merge(
        Merge(
            model=model,
            buffers=model[:0],
            fresh=held,
            held=held,
            starts={},
            weights=dict(enumerate(weights)),
            clients=10,
            fleet_weight=lambda: 10.0,
        )
    )
    masks = torch.stack(
        [torch.ones_like(model, dtype=torch.bool) if c.levels is None else c.levels.mask(c.level) for c in held]
    )
    expected = mask_aware_mean((model + 1e-3).expand(10, -1), masks, torch.tensor(weights), model)
    torch.testing.assert_close(found, expected)
    values, level_bytes = merge.touched(held, model)
    assert values == 4 * int(masks.sum() + len(model))
    assert level_bytes == (0 if densities == "all 1" or count == 1 else count * len(model))


def test_rows_and_limits() -> None:
    rows = list(merge.rows(CPU, LAYOUT, turns=1, repeat=1))
    assert len(rows) == 8
    assert [row["limit"] for row in rows] == [2.0, 6.0, 6.0, ""] * 2  # none on the half-precision buffer


def test_the_fastest_turn_counts() -> None:
    times = iter([0, 10, 20, 21, 30, 35, 40, 42])
    actions = {"one": lambda: None, "other": lambda: None}
    assert turns.fastest(actions, turns=1, device=CPU, clock=lambda: float(next(times))) == {"one": 5.0, "other": 2.0}


def test_the_refresh_that_is_timed_has_ties() -> None:
    layout = Layout.of(refresh.Conv2())
    now = refresh.inputs(layout, 0.5, CPU)
    assert now.previous is not None
    assert 0.45 < float((now.model == now.previous).float().mean()) < 0.55
