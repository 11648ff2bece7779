"""Where kept weights lie: by hand, and against a plain search."""

import numpy as np
import pytest
import torch

from fedgmr.submodels.layout import TensorPlace
from fedgmr.submodels.levels import LevelMap
from fedgmr.training.sparse.patterns import Pattern


@pytest.mark.parametrize("size", [1, 8, 24, 1000, 1003])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
def test_true_positions(size: int, share: float) -> None:
    mask = np.random.default_rng(size).random(size) < share
    found = Pattern.positions(mask, int(mask.sum()))
    assert found.tolist() == [i for i, kept in enumerate(mask) if kept]
    # Part of a longer vector, as a tensor's levels are: where it begins in memory is no multiple of eight bytes.
    longer = np.concatenate([np.ones(3, dtype=np.bool_), mask])[3:]
    assert Pattern.positions(longer, int(mask.sum())).tolist() == found.tolist()


def test_pattern_by_hand() -> None:
    # . a . b
    # . . . .
    # c d . .
    pattern = Pattern.of(torch.tensor([1, 3, 8, 9], dtype=torch.int32), (3, 4))
    assert pattern.starts.tolist() == [0, 2, 2, 4]
    assert pattern.columns.tolist() == [1, 3, 0, 1]
    # The transpose has c | a d | - | b.
    assert pattern.across_starts.tolist() == [0, 1, 3, 3, 4]
    assert pattern.across_columns.tolist() == [2, 0, 2, 0]
    assert pattern.across.tolist() == [2, 0, 3, 1]


def test_pattern_among_columns_by_hand() -> None:
    # . a . b      . a b
    # . . . .  ->  . . .
    # c d . .      c d .
    pattern = Pattern.of(torch.tensor([1, 3, 8, 9], dtype=torch.int32), (3, 4))
    found = pattern.among(torch.tensor([0, 1, 3], dtype=torch.int32))
    assert (found.shape, found.inputs, found.kept.tolist()) == ((3, 4), 3, [1, 3, 8, 9])
    assert found.columns.tolist() == [1, 2, 0, 1]
    assert found.across_starts.tolist() == [0, 1, 3, 4]
    assert found.starts is pattern.starts
    assert found.across_columns is pattern.across_columns
    assert found.across is pattern.across


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (7, 31), (64, 80), (3, 70_000)])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_the_transpose_has_the_same_entries(shape: tuple[int, int], share: float) -> None:
    mask = np.random.default_rng(1).random(shape) < share
    mask[0, 0] = True
    pattern = Pattern.of(torch.from_numpy(np.flatnonzero(mask)).int(), shape)
    numbers, matrix = torch.arange(1, int(mask.sum()) + 1).float(), torch.zeros(shape)
    rows = torch.repeat_interleave(torch.arange(shape[0]), pattern.starts.diff())
    matrix[rows, pattern.columns.long()] = numbers
    assert torch.equal(matrix != 0, torch.from_numpy(mask))
    transpose = torch.zeros(shape[::-1])
    columns = torch.repeat_interleave(torch.arange(shape[1]), pattern.across_starts.diff())
    transpose[columns, pattern.across_columns.long()] = numbers[pattern.across.long()]
    assert torch.equal(transpose.t(), matrix)


@pytest.mark.parametrize("known", [False, True])
def test_kept_weights_of_one_tensor(known: bool) -> None:
    """Whether the level order is known already or not."""
    levels = LevelMap(torch.tensor([0, 1, 2, 0, 1, 1, 0, 2, 0, 0, 1], dtype=torch.uint8), (0.4, 0.8, 1.0))
    if known:
        assert levels.order is not None
    place = TensorPlace(name="w", shape=(3, 2), start=3, prunable=True)  # 0 1 | 1 0 | 2 0
    for level, wanted in ((0, [0, 3, 5]), (1, [0, 1, 2, 3, 5]), (2, [0, 1, 2, 3, 4, 5])):
        found = Pattern.find(levels, level, place, at_most=len(wanted))
        assert found is not None
        assert (found.tolist(), found.dtype) == (wanted, torch.int32)
        assert Pattern.find(levels, level, place, at_most=len(wanted) - 1) is None
    empty = TensorPlace(name="v", shape=(1, 1), start=7, prunable=True)
    assert Pattern.find(levels, 1, empty, at_most=5) is None
    assert ("order" in vars(levels)) is known
