"""Exact selection: hand examples, then anything against a plain sort."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmr.submodels.selection import place

# Few different values, so that ties are the rule.
AWKWARD = [-math.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 1.0000001, 2.5, math.inf]


def groups(*keys: list[float], ends: list[int], dtype: torch.dtype = torch.float32) -> list[int]:
    placed = place([torch.tensor(key, dtype=dtype) for key in keys], ends)
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
    placed = place([-torch.arange(300.0)], list(range(1, 255)))
    assert placed.tolist() == [*range(254), *([254] * 46)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_equals_a_sort(dtype: torch.dtype, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 40), label="size")
    values = st.sampled_from(AWKWARD) | st.floats(-4, 4, width=32)
    keys = [
        torch.tensor(data.draw(st.lists(values, min_size=size, max_size=size)), dtype=dtype)
        for _ in range(data.draw(st.integers(1, 3), label="keys"))
    ]
    ends = sorted(data.draw(st.lists(st.integers(0, size), max_size=6), label="ends"))
    # lexsort takes the least important key first; the index decides last because the sort is stable.
    ranking = np.lexsort([-key.double().numpy() for key in reversed(keys)])
    expected = np.empty(size, np.uint8)
    expected[ranking] = np.searchsorted(ends, np.arange(size), side="right")
    assert place(keys, ends).tolist() == expected.tolist()
