"""Exact selection: hand examples, then anything against a plain sort."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedgmr.submodels.blocks import positions
from fedgmr.submodels.selection import Selection

# Few different values, so that ties are the rule.
AWKWARD = [-math.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 1.0000001, 2.5, math.inf]


def groups(*keys: list[float], ends: list[int], dtype: torch.dtype = torch.float32) -> list[int]:
    placed = Selection([torch.tensor(key, dtype=dtype) for key in keys]).cut(ends)
    assert placed.dtype == torch.uint8
    return placed.tolist()


def test_cut_by_rank() -> None:
    # descending: 9 (index 3), 7 (0), 5 (4), 3 (1), 1 (2)
    assert groups([7, 3, 1, 9, 5], ends=[1, 3]) == [1, 2, 2, 0, 1]
    assert groups([7, 3, 1, 9, 5], ends=[2, 4, 5]) == [0, 1, 2, 0, 1]


def test_negative_scores_come_last() -> None:
    assert groups([-1, 2, -3, 0], ends=[1, 2, 3]) == [2, 0, 3, 1]


def test_the_lower_index_wins_a_tie() -> None:
    assert groups([5, 5, 5, 5], ends=[1, 3]) == [0, 1, 1, 2]


def test_the_second_key_decides_before_the_index() -> None:
    assert groups([5, 5, 5, 9], [1, 3, 2, 0], ends=[2, 3]) == [2, 0, 1, 0]


def test_both_zeros_are_equal() -> None:
    assert groups([-0.0, 0.0, -0.0], ends=[1, 2]) == [0, 1, 2]
    assert groups([-0.0, 0.0, -0.0], ends=[1, 2], dtype=torch.float64) == [0, 1, 2]


def test_infinities() -> None:
    assert groups([0, math.inf, -math.inf, 3e38], ends=[1, 2, 3]) == [2, 0, 3, 1]


def test_neighbouring_numbers_are_told_apart() -> None:
    # They differ in the lowest bits only, below the first 16 that are looked at.
    up32 = float(np.nextafter(np.float32(1), np.float32(2)))
    assert groups([1.0, up32, 1.0], ends=[1]) == [1, 0, 1]
    up64 = math.nextafter(1.0, 2.0)
    assert groups([1.0, 1.0, up64], ends=[1], dtype=torch.float64) == [1, 1, 0]
    assert groups([-1.0, -up64], ends=[1], dtype=torch.float64) == [0, 1]


def test_empty_groups_and_ends() -> None:
    assert groups([3, 1, 2], ends=[0, 0, 2, 2]) == [2, 4, 2]
    assert groups([3, 1, 2], ends=[0]) == [1, 1, 1]
    assert groups([3, 1, 2], ends=[3]) == [0, 0, 0]
    assert groups([3, 1, 2], ends=[]) == [0, 0, 0]
    assert groups([], ends=[0, 0]) == []


def test_the_most_groups_a_byte_holds() -> None:
    placed = Selection([-torch.arange(300.0)]).cut(list(range(1, 255)))
    assert placed.tolist() == [*range(254), *([254] * 46)]


def test_exempt_elements_take_no_rank() -> None:
    # Without 9 and 1 the order is 7 (index 0), 5 (4), 3 (1).
    exempt = torch.tensor([False, False, True, True, False])
    assert Selection([torch.tensor([7.0, 3, 1, 9, 5])]).cut([1, 2], exempt=exempt).tolist() == [0, 2, 0, 0, 1]


def test_parts_are_cut_each_by_itself() -> None:
    keys = [torch.tensor([4.0, 6, 5, 0, 9, 9, 8, 1])]
    assert Selection(keys).cut_within([(0, 3), (4, 7)], [[1, 2], [2, 2]]).tolist() == [2, 0, 1, 0, 0, 0, 2, 0]
    assert Selection(keys).cut_within([], []).tolist() == [0] * 8


def test_many_parts() -> None:
    parts = [(start, start + 2) for start in range(0, 600, 2)]
    assert Selection([torch.arange(600.0) % 2]).cut_within(parts, [[1]] * 300).tolist() == [1, 0] * 300
    assert Selection([torch.ones(600)]).cut_within(parts, [[1]] * 300).tolist() == [0, 1] * 300  # 300 bins are cut


def test_floors_come_before_all_else() -> None:
    # Together 9, 9, 8 (indices 4, 5, 6) would be first; the first part's 6 takes the place of the 8.
    keys = [torch.tensor([4.0, 6, 5, 0, 9, 9, 8])]
    assert Selection(keys).cut_across([(0, 3), (4, 7)], [0, 0], [3, 4]).tolist() == [2, 1, 2, 0, 0, 0, 0]
    assert Selection(keys).cut_across([(0, 3), (4, 7)], [1, 0], [3, 4]).tolist() == [2, 0, 2, 0, 0, 0, 1]
    assert Selection(keys).cut_across([(0, 3), (4, 7)], [2, 1], [3, 4]).tolist() == [2, 0, 0, 0, 0, 1, 2]
    assert Selection(keys).cut_across([], [], [0]).tolist() == [0] * 7


def test_positions() -> None:
    assert positions(torch.tensor([3, 0, 3, 255], dtype=torch.uint8), 3).tolist() == [0, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_equals_a_sort(dtype: torch.dtype, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 40), label="size")
    keys = _draw_keys(data, size, dtype)
    ends = sorted(data.draw(st.lists(st.integers(0, size), max_size=6), label="ends"))
    assert Selection(keys).cut(ends).tolist() == _sorted(keys, ends)


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_parts_and_exemptions_equal_a_sort_of_each(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40), label="size")
    keys = _draw_keys(data, size, torch.float32)
    cuts = sorted(data.draw(st.sets(st.integers(0, size), max_size=6), label="cuts"))
    parts = [(a, b) for number, (a, b) in enumerate(itertools.pairwise(cuts)) if number != 1]  # with a gap
    number = data.draw(st.integers(1, 3), label="ends")
    ends = [sorted(data.draw(st.integers(0, b - a)) for _ in range(number)) for a, b in parts]
    expected = [0] * size
    for (a, b), ranks in zip(parts, ends, strict=True):
        expected[a:b] = _sorted([key[a:b] for key in keys], ranks)
    assert Selection(keys).cut_within(parts, ends).tolist() == expected

    floors = [data.draw(st.integers(0, b - a), label="floor") for a, b in parts]
    inside = torch.zeros(size, dtype=torch.bool)
    first = torch.full((size,), -1.0)
    for (a, b), floor in zip(parts, floors, strict=True):
        inside[a:b] = True
        first[a:b] = -torch.tensor(_sorted([key[a:b] for key in keys], [floor]))
    most = int(inside.sum())
    ranks = sorted(data.draw(st.integers(sum(floors), most)) for _ in range(number))
    placed = torch.zeros(size, dtype=torch.uint8)
    # Among those that come first the order does not matter: they are all in the first group.
    placed[inside] = torch.tensor(_sorted([key[inside] for key in (first, *keys)], ranks), dtype=torch.uint8)
    assert Selection(keys).cut_across(parts, floors, ranks).tolist() == placed.tolist()

    exempt = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size), label="exempt"))
    others = [key[~exempt] for key in keys]
    ranks = sorted(data.draw(st.integers(0, len(others[0]))) for _ in range(number))
    placed = torch.zeros(size, dtype=torch.uint8)
    placed[~exempt] = torch.tensor(_sorted(others, ranks), dtype=torch.uint8)
    assert Selection(keys).cut(ranks, exempt=exempt).tolist() == placed.tolist()


def _draw_keys(data: st.DataObject, size: int, dtype: torch.dtype) -> list[Tensor]:
    values = st.sampled_from(AWKWARD) | st.floats(-4, 4, width=32)
    return [
        torch.tensor(data.draw(st.lists(values, min_size=size, max_size=size)), dtype=dtype)
        for _ in range(data.draw(st.integers(1, 3), label="keys"))
    ]


def _sorted(keys: Sequence[Tensor], ends: Sequence[int]) -> list[int]:
    # lexsort takes the least important key first; the index decides last because the sort is stable.
    ranking = np.lexsort([-key.double().numpy() for key in reversed(keys)])
    groups = np.empty(len(keys[0]), np.uint8)
    groups[ranking] = np.searchsorted(ends, np.arange(len(keys[0])), side="right")
    return [int(group) for group in groups]
