"""Level maps: exact counts, nesting, level order."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmr.submodels.levels import LevelMap, check_ladder, kept_counts

PAPER = (0.05, 0.1, 0.2, 0.5, 1.0)


def levels_of(scores: list[float], ladder: tuple[float, ...], **more: torch.Tensor) -> list[int]:
    return LevelMap.from_scores(torch.tensor(scores), ladder, **more).levels.tolist()


@pytest.mark.parametrize(
    ("prunable", "counts"),
    [
        (10, [1, 1, 2, 5, 10]),  # 0.5 rounds up
        (30, [2, 3, 6, 15, 30]),  # so does 1.5
        (7, [0, 1, 1, 4, 7]),
        (1, [0, 0, 0, 1, 1]),
        (0, [0, 0, 0, 0, 0]),
        (6_601_504, [330_075, 660_150, 1_320_301, 3_300_752, 6_601_504]),
    ],
)
def test_kept_counts(prunable: int, counts: list[int]) -> None:
    assert kept_counts(PAPER, prunable) == counts


def test_from_scores_by_hand() -> None:
    # 1, 3 and 5 of five coordinates
    levels = LevelMap.from_scores(torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0]), (0.2, 0.6, 1.0))
    assert levels.levels.tolist() == [0, 2, 1, 2, 1]
    assert levels.levels.dtype == torch.uint8
    assert levels.increments == (1, 2, 2)
    assert levels.sizes == (1, 3, 5)
    assert levels.top == 2
    assert len(levels) == 5
    assert levels.mask(1).tolist() == [True, False, True, False, True]
    assert levels.order is not None
    assert levels.order.tolist() == [0, 2, 4, 1, 3]
    assert levels.order_of(2).tolist() == [0, 2]
    assert levels.position.tolist() == [0, 3, 1, 4, 2]
    assert [levels.whole(level) for level in range(3)] == [False, False, True]


def test_spreading_values_out() -> None:
    levels = LevelMap(torch.tensor([0, 2, 1, 2, 1], dtype=torch.uint8), (0.2, 0.6, 1.0))  # level order 0, 2, 4, 1, 3
    rest = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0])
    assert levels.spread(torch.tensor([9.0, 8.0, 7.0]), rest).tolist() == [9, -2, 8, -4, 7]
    assert levels.spread(torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0]), rest).tolist() == [9, 6, 8, 5, 7]
    assert LevelMap.full(2).spread(torch.tensor([1.0, 2.0]), rest[:2]).tolist() == [1, 2]
    assert rest.tolist() == [-1, -2, -3, -4, -5]


def test_counts_are_exact_under_ties() -> None:
    levels = LevelMap.from_scores(torch.zeros(10), (0.1, 0.25, 0.5, 1.0))
    assert levels.levels.tolist() == [0, 1, 1, 2, 2, 3, 3, 3, 3, 3]


def test_ties_go_to_the_tie_break_then_to_the_index() -> None:
    ties = torch.tensor([1.0, 2.0, 2.0, 9.0])
    assert levels_of([3.0, 3.0, 3.0, 0.0], (0.25, 0.5, 0.75, 1.0), ties=ties) == [2, 0, 1, 3]


def test_always_kept_coordinates_are_level_0_and_not_counted() -> None:
    always = torch.tensor([True, False, False, False, False, True])
    levels = LevelMap.from_scores(torch.tensor([-9.0, 1.0, 4.0, 2.0, 3.0, -9.0]), (0.25, 0.5, 1.0), always)
    assert levels.levels.tolist() == [0, 2, 0, 2, 1, 0]
    assert levels.sizes == (3, 4, 6)
    everything = LevelMap.from_scores(torch.zeros(3), (0.5, 1.0), torch.ones(3, dtype=torch.bool))
    assert everything.sizes == (3, 3)


def test_a_top_below_1_leaves_coordinates_in_no_sub_model() -> None:
    levels = LevelMap.from_scores(torch.tensor([1.0, 4.0, 3.0, 2.0]), (0.25, 0.5))
    assert levels.levels.tolist() == [2, 0, 1, 2]
    assert levels.sizes == (1, 2)
    assert levels.mask(1).tolist() == [False, True, True, False]
    assert levels.pack(torch.tensor([10.0, 20.0, 30.0, 40.0]), 1).tolist() == [20, 30]
    assert levels.spread(torch.tensor([20.0, 30.0]), torch.zeros(4)).tolist() == [0, 20, 30, 0]


def test_pack_and_spread_by_hand() -> None:
    levels = LevelMap(torch.tensor([1, 0, 2, 0, 1], dtype=torch.uint8), (0.4, 0.8, 1.0))
    flat = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])
    assert levels.pack(flat, 0).tolist() == [20, 40]
    assert levels.pack(flat, 1).tolist() == [20, 40, 10, 50]
    assert levels.pack(flat, 2).tolist() == [20, 40, 10, 50, 30]
    assert levels.spread(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(5)).tolist() == [3, 1, 0, 2, 4]


def test_the_full_map_is_in_natural_order() -> None:
    levels = LevelMap.full(3)
    assert levels.order is None
    assert levels.ladder == (1.0,)
    assert levels.sizes == (3,)
    flat = torch.tensor([1.0, 2.0, 3.0])
    packed = levels.pack(flat, 0)
    packed[0] = 9.0
    assert flat.tolist() == [1, 2, 3], "packed values are a copy"
    assert levels.spread(packed, torch.zeros(3)).tolist() == [9, 2, 3]


@pytest.mark.parametrize("level", [-1, 3])
def test_levels_out_of_range(level: int) -> None:
    levels = LevelMap.from_scores(torch.arange(5.0), (0.2, 0.6, 1.0))
    calls = [levels.mask, levels.whole, lambda at: levels.pack(torch.zeros(5), at)]
    for call in calls:
        with pytest.raises(ValueError, match=f"level is {level}: give a level from 0 to 2"):
            call(level)


@pytest.mark.parametrize(
    ("ladder", "complaint"),
    [
        ([], "outside"),
        ([0.0, 1.0], "outside"),
        ([0.5, 1.5], "outside"),
        ([math.nan], "outside"),
        ([0.5, 0.5], "not increasing"),
        ([0.5, 0.2, 1.0], "not increasing"),
        ([i / 300 for i in range(1, 256)], "255 densities"),
    ],
)
def test_impossible_ladders(ladder: list[float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_ladder(ladder)
    with pytest.raises(ValueError, match=complaint):
        LevelMap.from_scores(torch.zeros(4), ladder)


def test_the_longest_ladder() -> None:
    ladder = check_ladder([i / 254 for i in range(1, 255)])
    assert len(ladder) == 254
    assert levels_of([-float(i) for i in range(254)], ladder) == list(range(254))


def test_impossible_scores() -> None:
    with pytest.raises(ValueError, match="NaN"):
        LevelMap.from_scores(torch.tensor([1.0, math.nan]), (1.0,))
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        LevelMap.from_scores(torch.zeros(2, 2), (1.0,))


LADDERS = st.lists(st.sampled_from([0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0]), min_size=1, unique=True).map(sorted)
SCORES = st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 1e-300, 1.0, 1.0 + 2**-50, 7.0, math.inf]) | st.floats(
    allow_nan=False
)


@settings(deadline=None, max_examples=120)
@given(data=st.data(), ladder=LADDERS, tied=st.booleans(), single=st.booleans())
def test_equals_a_plain_sort(data: st.DataObject, ladder: list[float], tied: bool, single: bool) -> None:
    size = data.draw(st.integers(1, 60), label="size")

    def drawn(values: st.SearchStrategy[float]) -> torch.Tensor:
        numbers = np.array(data.draw(st.lists(values, min_size=size, max_size=size)))
        with np.errstate(over="ignore"):
            return torch.from_numpy(numbers.astype(np.float32 if single else np.float64))

    scores, ties = drawn(SCORES), drawn(st.sampled_from([0.0, 1.0, 2.0]))
    always = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    levels = LevelMap.from_scores(scores, ladder, always, ties=ties if tied else None)

    others = np.flatnonzero(~always.numpy())
    keys = [-scores.double().numpy()[others]]
    if tied:
        keys.insert(0, -ties.double().numpy()[others])
    ranked = others[np.lexsort(keys)]
    expected = np.zeros(size, int)
    for rank, coordinate in enumerate(ranked):
        counts = [math.floor(density * len(others) + 0.5) for density in ladder]
        expected[coordinate] = sum(rank >= count for count in counts)
    assert levels.levels.tolist() == expected.tolist()

    assert levels.levels.dtype == torch.uint8
    order = np.concatenate([np.flatnonzero(expected == level) for level in range(len(ladder) + 1)])
    assert (levels.order.tolist() if levels.order is not None else list(range(size))) == order.tolist()


@settings(deadline=None, max_examples=60)
@given(
    raw=st.lists(st.integers(0, 3), min_size=1, max_size=50),
    seed=st.integers(0, 1000),
)
def test_increments_add_up_to_the_sub_model_bit_for_bit(raw: list[int], seed: int) -> None:
    levels = LevelMap(torch.tensor(raw, dtype=torch.uint8), (0.1, 0.5, 0.9))
    flat = torch.from_numpy(np.random.default_rng(seed).standard_normal(len(raw)).astype(np.float32))
    total, below = torch.zeros_like(flat), torch.zeros(len(raw), dtype=torch.bool)
    for level in range(3):
        assert bool((below & ~levels.mask(level)).sum() == 0), "a level holds all of the level below"
        assert torch.equal(levels.mask(level), below | (levels.levels == level))
        below = levels.mask(level)
        total += torch.where((levels.levels == level), flat, 0)
        packed = levels.pack(flat, level)
        assert len(packed) == levels.sizes[level] == sum(levels.increments[: level + 1])
        rebuilt = levels.spread(packed, torch.zeros_like(flat))
        assert torch.equal(rebuilt.view(torch.int32), total.view(torch.int32))
        assert torch.equal(levels.pack(rebuilt, level), packed)
        if level:
            # the smaller sub-model is a prefix
            smaller = levels.pack(flat, level - 1)
            assert torch.equal(packed[: len(smaller)], smaller)
