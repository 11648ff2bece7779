"""Rankings: importance by hand, the floor of every tensor, the first map, and growing without losing."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedgmr.submodels.layout import Layout
from fedgmr.submodels.levels import LevelMap, kept_counts
from fedgmr.submodels.rankings import FullModel, Magnitude, Random, Ranking, RankingInputs, Taylor
from fedgmr.submodels.threshold import Threshold
from fedgmr.tasks.models.vgg11 import HEAD, VGG11

QUARTERS = (0.25, 0.5, 0.75, 1.0)


def layout_of(*sizes: int, bias: bool = False) -> Layout:
    """One prunable tensor of each size (and, asked for, a bias of one after each)."""
    return Layout.of(nn.Sequential(*(nn.Linear(size, 1, bias=bias) for size in sizes)))


def inputs(
    layout: Layout,
    model: list[float] | Tensor,
    previous: list[float] | Tensor | None = None,
    ladder: tuple[float, ...] = QUARTERS,
) -> RankingInputs:
    return RankingInputs(
        layout=layout,
        ladder=ladder,
        model=torch.as_tensor(model, dtype=torch.float32),
        previous=None if previous is None else torch.as_tensor(previous, dtype=torch.float32),
    )


def kept_in(levels: LevelMap, layout: Layout, level: int) -> list[int]:
    """How many coordinates of each prunable tensor the sub-model has."""
    return [int(levels.mask(level)[t.start : t.stop].sum()) for t in layout.prunable]


def test_importance_by_hand() -> None:
    # ((W - W_old) W)^2: changes 1, -3, 2, 0 times 8, 1, -3, 4, squared: 64, 9, 36, 0. The bias, though unmoved, stays.
    at = inputs(layout_of(4, bias=True), [8, 1, -3, 4, 0], [7, 4, -5, 4, 0])
    assert Taylor().rank(at).levels.tolist() == [0, 2, 1, 3, 0]
    assert Magnitude().rank(at).levels.tolist() == [0, 3, 2, 1, 0]


def test_equal_importance_goes_by_magnitude_then_index() -> None:
    at = inputs(layout_of(4), [1, -5, 5, 3], [1, -5, 5, 3])
    assert Taylor().rank(at).levels.tolist() == [3, 0, 1, 2]


def test_rounding_is_no_movement() -> None:
    # 5 differs by one unit in the last place, 3 by a hundred thousand of them: only 3 has moved.
    nudged = torch.nextafter(torch.tensor(5.0), torch.tensor(6.0)).item()
    at = inputs(layout_of(4), [5, -6, 3, 4], [nudged, -6, 2.97, 4])
    assert Taylor().rank(at).levels.tolist() == [2, 1, 0, 3]


def test_floor_count() -> None:
    sizes = (1, 30, 99, 100, 149, 150, 1000)
    counts = {place.size: place.floor_count(0.02) for place in layout_of(*sizes).prunable}
    assert counts == {1: 1, 30: 1, 99: 1, 100: 2, 149: 2, 150: 3, 1000: 20}
    hundred, three = layout_of(100, 3).prunable
    assert hundred.floor_count(0.0) == 0
    assert three.floor_count(1.0) == 3


@pytest.mark.parametrize(("floor", "moved", "unmoved"), [(0.02, 6, 2), (0.05, 3, 5), (0.0, 8, 0)])
def test_the_least_important_tensor_keeps_its_floor(floor: float, moved: int, unmoved: int) -> None:
    # The second tensor has not moved, so everything in it scores 0; yet its weights are the largest.
    layout = layout_of(60, 100)
    model = torch.cat([torch.linspace(0.1, 0.2, 60), torch.linspace(1, 2, 100)])
    previous = model.clone()
    previous[:60] = 0
    levels = Taylor(floor=floor).rank(inputs(layout, model, previous, (0.05, 1.0)))
    assert levels.sizes == (8, 160)
    assert kept_in(levels, layout, 0) == [moved, unmoved]
    # Of equal scores the largest weights; they lie at the end.
    assert levels.mask(0)[60:].nonzero().view(-1).tolist() == list(range(100 - unmoved, 100))
    assert levels.mask(0)[:60].nonzero().view(-1).tolist() == list(range(60 - moved, 60))


def test_a_tiny_tensor_keeps_one_coordinate() -> None:
    layout = layout_of(3, 97)
    model = torch.ones(100)
    model[1] = 2.0
    previous = torch.zeros(100)
    previous[:3] = model[:3]
    levels = Taylor().rank(inputs(layout, model, previous, (0.05, 1.0)))
    assert levels.sizes == (5, 100)
    assert levels.levels[:3].tolist() == [1, 0, 1]


def test_the_first_map_ranks_within_each_tensor_by_magnitude() -> None:
    # By themselves 70 and 30 weights keep 3.5 and 1.5, both rounded up; together 5 of 100, so the larger gives way.
    layout = layout_of(70, 30)
    model = torch.cat([torch.linspace(-0.01, 0.0, 70), torch.linspace(5, 6, 30)])
    for ranking in (Taylor(), Magnitude()):
        levels = ranking.rank(inputs(layout, model, None, (0.05, 0.1, 0.2, 0.5, 1.0)))
        assert levels.sizes == (5, 10, 20, 50, 100)
        assert [kept_in(levels, layout, level) for level in range(5)] == [[3, 2], [7, 3], [14, 6], [35, 15], [70, 30]]
        assert levels.mask(0).nonzero().view(-1).tolist() == [0, 1, 2, 98, 99]


def test_the_first_map_keeps_biases_and_the_floor() -> None:
    layout = layout_of(4, 36, bias=True)
    levels = Taylor().rank(inputs(layout, torch.zeros(42), None, (0.05, 1.0)))
    assert levels.sizes == (2 + 2, 42)
    assert kept_in(levels, layout, 0) == [1, 1]
    assert levels.levels[4] == levels.levels[41] == 0


def test_the_first_map_lets_no_tensor_of_a_deep_narrow_model_die() -> None:
    # Ten tensors of four: 5 % of all are two weights, but every tensor keeps its one.
    layout = layout_of(*[4] * 10)
    levels = Taylor().rank(inputs(layout, torch.arange(40.0), None, (0.05, 0.1, 0.2, 0.5, 1.0)))
    assert kept_in(levels, layout, 0) == [1] * 10
    assert kept_in(levels, layout, 4) == [4] * 10


def test_the_first_map_never_shrinks_up_the_ladder() -> None:
    # Twenty tensors of five round up together from nothing to one: more than the largest can make good.
    layout = layout_of(*[5] * 20, 20)
    levels = Taylor(floor=0.0).rank(inputs(layout, torch.arange(120.0), None, (0.05, 0.1, 0.5, 1.0)))
    assert kept_in(levels, layout, 0) == [0] * 20 + [6]
    assert kept_in(levels, layout, 1) == [1] * 20 + [6]
    assert kept_in(levels, layout, 2) == [3] * 20 + [6]
    assert levels.sizes[3] == 120


@pytest.mark.parametrize(
    ("held", "levels"),
    [
        ({0, 1, 2, 3}, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({1}, [1, 1, 0, 0, 3, 3, 2, 2]),
        ({0}, [0, 0, 3, 3, 2, 2, 1, 1]),
        ({0, 2}, [0, 0, 2, 2, 1, 1, 3, 3]),
        ({3}, [3, 3, 2, 2, 1, 1, 0, 0]),
        (set(), [3, 3, 2, 2, 1, 1, 0, 0]),
    ],
)
def test_grow_only_ranks_anew_between_the_levels_held(held: set[int], levels: list[int]) -> None:
    # All moved from 0, so importance rises with the index.
    current = LevelMap(torch.tensor([0, 0, 1, 1, 2, 2, 3, 3], dtype=torch.uint8), QUARTERS)
    at = inputs(layout_of(8), torch.arange(1.0, 9.0), torch.zeros(8))
    at = replace(at, current=current, held=frozenset(held))
    grown = Taylor(refresh="grow_only").rank(at)
    assert grown.levels.tolist() == levels
    assert grown.levels.dtype == torch.uint8
    assert grown.sizes == current.sizes
    for level in held:
        assert torch.equal(grown.mask(level), current.mask(level))
    assert Taylor().rank(at).levels.tolist() == [3, 3, 2, 2, 1, 1, 0, 0], "reranking ignores what is held"


def test_grow_only_keeps_always_kept_coordinates_at_level_0() -> None:
    layout = layout_of(8, bias=True)
    current = LevelMap(torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 0], dtype=torch.uint8), QUARTERS)
    at = inputs(layout, [1, 2, 3, 4, 5, 6, 7, 8, 0], torch.zeros(9))
    for held in ({1}, {3}):
        grown = Taylor(refresh="grow_only").rank(replace(at, current=current, held=frozenset(held)))
        assert grown.levels[8] == 0
        assert grown.sizes == (3, 5, 7, 9)


def test_grow_only_may_bring_in_coordinates_of_no_sub_model() -> None:
    # The ladder ends at a half and nobody holds that level yet: its two new coordinates are the best of all outside.
    current = LevelMap(torch.tensor([0, 0, 1, 1, 2, 2, 2, 2], dtype=torch.uint8), (0.25, 0.5))
    at = inputs(layout_of(8), torch.arange(1.0, 9.0), torch.zeros(8), (0.25, 0.5))
    ranking = Taylor(refresh="grow_only")
    grown = ranking.rank(replace(at, current=current, held=frozenset({0})))
    assert grown.levels.tolist() == [0, 0, 2, 2, 2, 2, 1, 1]
    held = ranking.rank(replace(at, current=current, held=frozenset({0, 1})))
    assert held.levels.tolist() == current.levels.tolist()


def test_grow_only_without_scores_keeps_the_map() -> None:
    # As after a recovery to the first model, which has no model before it.
    current = LevelMap(torch.tensor([0, 0, 1, 1, 2, 2, 3, 3], dtype=torch.uint8), QUARTERS)
    at = replace(inputs(layout_of(8), torch.arange(8.0)), current=current, held=frozenset({0, 1}))
    for kind in (Taylor, Magnitude):
        assert kind(refresh="grow_only").rank(at).levels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert kind().rank(at).levels.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]


class OwnLayer(nn.Module):
    """A layer that nobody knows as one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))


@pytest.mark.parametrize("ranking", [Taylor(), Magnitude(), Random(), Threshold(scope="layerwise", ranks="prunable")])
def test_a_model_without_prunable_parameters_has_no_sub_models(ranking: Ranking) -> None:
    with pytest.raises(ValueError, match=r"no parameter that may be pruned.*name some in Task.prune, or"):
        ranking.rank(inputs(Layout.of(OwnLayer()), torch.zeros(12)))
    assert ranking.rank(inputs(Layout.of(OwnLayer(), prune=["weight"]), torch.zeros(12))).sizes == (3, 6, 9, 12)


def test_random_belongs_to_seed_and_tick() -> None:
    layout = layout_of(50, 150, bias=True)
    at = inputs(layout, torch.zeros(202), None, (0.05, 0.1, 0.2, 0.5, 1.0))

    def rank(seed: int, tick: int) -> list[int]:
        levels = Random().rank(replace(at, seed=seed, tick=tick))
        assert levels.sizes == tuple(2 + n for n in (10, 20, 40, 100, 200))
        assert kept_in(levels, layout, 0)[0] >= 1
        return levels.levels.tolist()

    assert rank(1, 4) == rank(1, 4)
    assert len({tuple(rank(seed, tick)) for seed in (1, 2) for tick in (0, 25)}) == 4


@pytest.mark.parametrize("ranking", [Taylor(), Magnitude(), Random()])
def test_unstructured_maps_are_due_every_interval(ranking: Taylor | Magnitude | Random) -> None:
    assert [tick for tick in range(1, 13) if ranking.due(tick, 4)] == [4, 8, 12]
    assert ranking.ladder((0.3, 0.7)) == (0.3, 0.7)


def test_the_full_model() -> None:
    full = FullModel()
    levels = full.rank(inputs(layout_of(5, bias=True), torch.zeros(6)))
    assert levels.levels.tolist() == [0] * 6
    assert levels.ladder == full.ladder((0.05, 1.0)) == (1.0,)
    assert not any(full.due(tick, 1) for tick in range(5))


def test_counts_match_the_rule_whatever_the_tensors() -> None:
    layout, ladder = layout_of(11, 237, 64, bias=True), (0.05, 0.1, 0.2, 0.5, 1.0)
    model = torch.sin(torch.arange(315.0))
    for previous in (None, model.roll(1), model):
        levels = Taylor().rank(inputs(layout, model, previous, ladder))
        assert levels.sizes == tuple(3 + n for n in kept_counts(ladder, 312)) == (19, 34, 65, 159, 315)


@pytest.mark.parametrize("floor", [0.0, 0.02, 0.2])  # the last: the floors alone are more than level 0 has room for
@pytest.mark.parametrize("moved", [1.0, 0.4, 0.0])
def test_a_refresh_equals_a_plain_sort(floor: float, moved: float) -> None:
    # Weights of few values and many coordinates that have not moved: ties are the rule.
    layout, ladder = layout_of(11, 2000, 640, bias=True), (0.05, 0.1, 0.2, 0.5, 1.0)
    draw = torch.Generator().manual_seed(1)
    model = torch.randint(-9, 10, (layout.size,), generator=draw) / 8
    previous = model + torch.randint(-3, 4, (layout.size,), generator=draw) / 16
    previous = torch.where(torch.rand(layout.size, generator=draw) < moved, previous, model)
    found = Taylor(floor=floor).rank(inputs(layout, model, previous, ladder)).levels

    scores = ((model - previous) * model).square()
    order = sorted(range(layout.size), key=lambda i: (-scores[i].item(), -model[i].abs().item(), i))
    for tensor in layout.prunable:
        within = [i for i in order if tensor.start <= i < tensor.stop]
        scores[within[: tensor.floor_count(floor)]] = torch.inf
    prunable = [i for tensor in layout.prunable for i in range(tensor.start, tensor.stop)]
    prunable.sort(key=lambda i: (-scores[i].item(), -model[i].abs().item(), i))
    expected = torch.zeros(layout.size, dtype=torch.uint8)
    counts = kept_counts(ladder, layout.prunable_size)
    for rank, i in enumerate(prunable):
        expected[i] = sum(rank >= count for count in counts)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("floor", [0.0, 0.02, 0.6])
@pytest.mark.parametrize("ladder", [QUARTERS, (0.05, 0.3), (0.1, 0.5, 1.0)])
@pytest.mark.parametrize("kind", [Taylor, Magnitude, Random])
def test_a_map_knows_its_sizes_without_counting(
    kind: type[Taylor | Magnitude | Random], ladder: tuple[float, ...], floor: float
) -> None:
    layout = layout_of(40, 1, 27, bias=True)
    model, previous = torch.randn(2, layout.size, generator=torch.Generator().manual_seed(1))
    first = kind(floor=floor).rank(inputs(layout, model, ladder=ladder))
    later = kind(floor=floor).rank(inputs(layout, model, previous, ladder))
    at = replace(inputs(layout, previous, model, ladder), current=later, held=frozenset({0}))
    grown = kind(floor=floor, refresh="grow_only").rank(at)
    for levels in (first, later, grown):
        assert levels.counted is not None
        assert levels.increments == replace(levels, counted=None).increments


TWO = Layout.of(nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(2, 2, bias=False)))


def magnitude(model: list[float], ranking: Magnitude, ladder: tuple[float, ...] = (0.25, 0.5, 1.0)) -> list[int]:
    return ranking.rank(inputs(TWO, model, torch.zeros(8), ladder)).levels.tolist()


def test_magnitudes_by_the_cost_of_their_tensor() -> None:
    model = [8.0, -7, 6, 5, 4, -3, 2, 1]
    assert magnitude(model, Magnitude(floor=0)) == [0, 0, 1, 1, 2, 2, 2, 2]
    # Divided by 2 and 0.5: 4 3.5 3 2.5 and 8 6 4 2.
    assert magnitude(model, Magnitude(floor=0, costs=(2.0, 0.5))) == [1, 2, 2, 2, 0, 0, 1, 2]
    assert magnitude(model, Magnitude(floor=0, costs=(4.0, 1.0))) == magnitude(
        model, Magnitude(floor=0, costs=(2, 0.5))
    )


def test_magnitudes_relative_to_the_mean_of_the_candidates() -> None:
    # The means are 6.5 and 2.5: 1.23 1.08 0.92 0.77 and 1.6 1.2 0.8 0.4.
    assert magnitude([8.0, -7, 6, 5, 4, -3, 2, 1], Magnitude(floor=0, relative=True)) == [0, 1, 2, 2, 0, 1, 2, 2]
    # The floor keeps 20 and 4; the means of the others are 2 and 2: 1 1 1 and 1.5 1 0.5, of equal ones the first.
    assert magnitude([20.0, 2, 2, 2, 4, -3, 2, 1], Magnitude(floor=0.25, relative=True)) == [0, 1, 2, 2, 0, 1, 2, 2]
    # With costs 1 and 2 the second tensor's are 0.75 0.5 0.25.
    dear = Magnitude(floor=0.25, relative=True, costs=(1.0, 2.0))
    assert magnitude([20.0, 2, 2, 2, 4, -3, 2, 1], dear) == [0, 1, 1, 2, 0, 2, 2, 2]
    assert magnitude([0.0] * 4 + [4.0, 3, 2, 1], Magnitude(floor=0.25, relative=True))[4:] == [0, 1, 1, 2]


def test_costs_are_one_per_prunable_tensor() -> None:
    message = "method.ranking.costs has 1 numbers and the model 2 prunable tensors: give one for each of 0.weight, 1.w"
    with pytest.raises(ValueError, match=message):
        Magnitude(costs=(1.0,)).rank(inputs(TWO, torch.ones(8)))


# Shares of every layer of VGG-11 as initialised that the released costs keep, at densities 0.05, 0.1, 0.2 and 0.5.
SHARES = {
    "0.weight": (0.815, 0.953, 0.964, 0.980),
    "3.weight": (0.020, 0.020, 0.020, 0.190),
    "6.weight": (0.020, 0.093, 0.308, 0.590),
    "8.weight": (0.020, 0.020, 0.020, 0.375),
    "11.weight": (0.020, 0.241, 0.420, 0.657),
    "13.weight": (0.020, 0.020, 0.082, 0.457),
    "16.weight": (0.020, 0.020, 0.020, 0.329),
    "18.weight": (0.020, 0.035, 0.264, 0.564),
    "22.weight": (0.537, 0.888, 0.915, 0.950),
    "24.weight": (0.613, 0.907, 0.929, 0.958),
}
COSTS = (5.56, 50.34, 18.04, 19.47, 10.68, 11.95, 14.78, 9.59, 8.13, 6.78)


def test_the_released_costs_keep_the_released_shares_of_vgg11() -> None:
    torch.manual_seed(0)
    model = VGG11(head_init="fan_in")
    layout = Layout.of(model, keep=(HEAD,))
    flat = layout.flatten(model)
    ladder = (0.05, 0.1, 0.2, 0.5, 1.0)
    levels = Magnitude(costs=COSTS).rank(inputs(layout, flat, torch.zeros_like(flat), ladder))
    for place in layout.prunable:
        own = levels.levels[place.start : place.stop]
        shares = [float((own <= level).float().mean()) for level in range(4)]
        assert shares == pytest.approx(SHARES[place.name], abs=0.02), place.name
