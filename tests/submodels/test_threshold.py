"""FIARSE's ranking: magnitudes of the current model, biases with the weights, norms always; anew at every tick."""

from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import drive, objects
from torch import Tensor, nn

from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap
from fedgmr.submodels.rankings import Magnitude, RankingInputs
from fedgmr.submodels.threshold import Threshold
from fedgmr.training.thresholds import Dropping


def rank(
    layout: Layout, model: list[float] | Tensor, ladder: tuple[float, ...], *, tick: int = 0, **settings: Any
) -> LevelMap:
    values = torch.as_tensor(model, dtype=torch.float32)
    inputs = RankingInputs(layout=layout, ladder=ladder, model=values, tick=tick)
    return Threshold(**settings).rank(inputs)


def test_biases_are_ranked_with_the_weights() -> None:
    # Weights 8, -1, 3, bias -5: by size 8, 5, 3, 1. Other rankings keep the bias whatever it is.
    layout = Layout.of(nn.Linear(3, 1))
    quarters = (0.25, 0.5, 0.75, 1.0)
    assert rank(layout, [8, -1, 3, -5], quarters).levels.tolist() == [0, 3, 2, 1]
    assert rank(layout, [8, -1, 3, 0], quarters).levels.tolist() == [0, 2, 1, 3]
    inputs = RankingInputs(layout=layout, ladder=quarters, model=torch.tensor([8.0, -1, 3, 0]), previous=torch.zeros(4))
    assert Magnitude().rank(inputs).levels.tolist() == [0, 3, 1, 0]


@pytest.mark.parametrize("scope", ["global", "layerwise"])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm, lambda n: nn.GroupNorm(1, n)])
def test_normalisation_parameters_are_always_kept(scope: str, norm: type[nn.Module]) -> None:
    # Four weights, two biases, then weight and bias of the norm, all zero; densities count the first six.
    layout = Layout.of(nn.Sequential(nn.Linear(2, 2), norm(2)))
    levels = rank(layout, [1, 2, 3, 4, 5, 6, 0, 0, 0, 0], (0.5, 1.0), scope=scope)
    assert levels.levels[6:].tolist() == [0, 0, 0, 0]
    assert levels.sizes == (3 + 4, 10)


def test_one_threshold_may_empty_a_layer() -> None:
    # 5 % and half of 20: 1 and 10. The second layer is the smaller one in size, the larger one in weights.
    layout = Layout.of(nn.Sequential(nn.Linear(12, 1, bias=False), nn.Linear(8, 1, bias=False)))
    model = torch.cat([torch.linspace(0.01, 0.02, 12), torch.linspace(1, 2, 8)])
    levels = rank(layout, model, (0.05, 0.5, 1.0))
    assert levels.mask(0).nonzero().view(-1).tolist() == [19]
    assert (levels.levels == 1).nonzero().view(-1).tolist() == [10, 11, *range(12, 19)]
    assert not levels.mask(0)[:12].any(), "there is no floor"


def test_a_floor_saves_the_layer() -> None:
    # A quarter of each tensor comes first: 3 of 12 and 2 of 8. At 0.05 of 20 the floors compete by size.
    layout = Layout.of(nn.Sequential(nn.Linear(12, 1, bias=False), nn.Linear(8, 1, bias=False)))
    model = torch.cat([torch.linspace(0.01, 0.02, 12), torch.linspace(1, 2, 8)])
    levels = rank(layout, model, (0.05, 0.25, 0.5, 1.0), floor=0.25)
    assert levels.sizes == (1, 5, 10, 20)
    assert levels.mask(0).nonzero().view(-1).tolist() == [19]
    assert levels.mask(1).nonzero().view(-1).tolist() == [9, 10, 11, 18, 19]
    assert levels.mask(2).nonzero().view(-1).tolist() == [9, 10, 11, *range(13, 20)]
    # Layerwise, 0.05 of each is one weight, but the floor says 3 and 2.
    assert rank(layout, model, (0.05, 1.0), scope="layerwise", floor=0.25).sizes == (5, 20)


@pytest.mark.parametrize("scope", ["global", "layerwise"])
def test_only_prunable_weights_may_be_ranked(scope: str) -> None:
    # Two of the four weights of the first layer; its biases and the second layer, which is kept, are in every level.
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    layout = Layout.of(net, keep=("1.weight",))
    levels = rank(layout, [1, -4, 3, 2, 0, 0, 0, 0], (0.5, 1.0), scope=scope, ranks="prunable")
    assert levels.levels.tolist() == [1, 0, 0, 1, 0, 0, 0, 0]
    assert levels.sizes == (6, 8)
    floored = rank(layout, [1, -4, 3, 2, 0, 0, 0, 0], (0.5, 1.0), scope=scope, ranks="prunable", floor=0.25)
    assert floored.levels.tolist() == levels.levels.tolist()


def test_layerwise_keeps_its_share_of_every_tensor() -> None:
    # Half of 12 weights, of 4 biases, of 8 weights, of 2 biases; each the largest of its tensor.
    layout = Layout.of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    model = torch.cat([torch.arange(12.0), torch.arange(4.0) * 100, -torch.arange(8.0) / 1000, torch.tensor([1.0, -2])])
    levels = rank(layout, model, (0.25, 0.5, 1.0), scope="layerwise")
    kept = [
        levels.mask(level)[p.start : p.stop].nonzero().view(-1).tolist() for level in (0, 1) for p in layout.parameters
    ]
    assert kept == [[9, 10, 11], [3], [6, 7], [1], [6, 7, 8, 9, 10, 11], [2, 3], [4, 5, 6, 7], [1]]
    assert levels.sizes == (7, 13, 26)


def test_layerwise_totals_are_exact() -> None:
    # A tenth of 3, 3 and 34 is 0.3, 0.3 and 3.4, of all 40 it is 4: the largest tensor takes up the rounding.
    layout = Layout.of(nn.Sequential(*(nn.Linear(n, 1, bias=False) for n in (3, 34, 3))))
    levels = rank(layout, torch.arange(40.0), (0.1, 1.0), scope="layerwise")
    assert levels.sizes == (4, 40)
    assert levels.mask(0).nonzero().view(-1).tolist() == [33, 34, 35, 36]


def test_sub_models_are_nested_and_cut_by_a_threshold() -> None:
    torch.manual_seed(4)
    layout = Layout.of(nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(20, 3)))
    model = torch.randn(layout.size)
    ranked = torch.ones(layout.size, dtype=torch.bool)
    for place in layout.parameters:
        ranked[place.start : place.stop] = not place.norm
    levels = rank(layout, model, (0.05, 0.1, 0.2, 0.5, 1.0))
    for level in range(4):
        inside, outside = levels.mask(level) & ranked, ~levels.mask(level)
        assert model[inside].abs().min() > model[outside].abs().max()
        assert (levels.mask(level) <= levels.mask(level + 1)).all()
    assert levels.sizes[4] == layout.size


def test_it_does_not_look_back_and_is_due_at_every_tick() -> None:
    layout = Layout.of(nn.Linear(4, 1, bias=False))
    model = torch.tensor([4.0, 3.0, 2.0, 1.0])
    at = {"layout": layout, "ladder": (0.5, 1.0), "model": model}
    first = Threshold().rank(RankingInputs(**at))  # type: ignore[arg-type]
    later = Threshold().rank(RankingInputs(**at, previous=model.flip(0), tick=9))  # type: ignore[arg-type]
    assert first.levels.tolist() == later.levels.tolist() == [0, 0, 1, 1]
    assert all(Threshold().due(tick, 25) for tick in range(1, 60))
    assert Threshold().ladder((0.3, 0.7)) == (0.3, 0.7)
    assert not first.implied, "a client cannot work it out, so the map travels"


@pytest.mark.parametrize("scope", ["global", "layerwise"])
def test_a_run_ranks_the_model_of_each_tick(scope: str) -> None:
    run = objects(tiny.normed(), "fiarse", {"ranking": {"scope": scope}, "local": {"scope": scope}})
    server, maps = run.server, []

    def look() -> None:
        expected = rank(run.server.layout, server.model, server.ladder, scope=scope)
        assert torch.equal(server.levels.levels, expected.levels)
        assert server.map_version == server.tick
        maps.append(expected.levels.tolist())
        # A client's theta is the smallest magnitude of what it was sent.
        task = server.dispatched[4]
        assert task.levels is server.levels
        assert torch.equal(task.model, server.model)

    drive(run, ticks=4, watch=look)
    assert len({tuple(levels) for levels in maps}) == 4


def test_the_threshold_of_the_rule_is_that_of_the_ranking() -> None:
    """Every weight of a received sub-model takes part in the first step, whichever the scope and the level."""
    torch.manual_seed(4)
    layout = Layout.of(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)))
    model = torch.randn(layout.size)
    for scope in ("global", "layerwise"):
        levels = rank(layout, model, (0.1, 0.5, 1.0), scope=scope)
        for level in range(3):
            inside = layout.views(levels.mask(level))
            sizes = [w.abs()[i] for w, i in zip(layout.views(model), inside, strict=True)]
            thetas = [size.min() if len(size) else torch.tensor(torch.inf) for size in sizes]
            if scope == "global":
                thetas = [torch.stack(thetas).min()] * len(thetas)
            kept = [
                Dropping.factor(w, t, derivative=True) > 0 for w, t in zip(layout.views(model), thetas, strict=True)
            ]
            assert all(map(torch.equal, kept, inside))
