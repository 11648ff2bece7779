"""Where kept weights lie: by hand, and against a plain search."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedgmr.training.patterns import Pattern, find_pattern, true_positions


@pytest.fixture(params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [1, 8, 24, 1000, 1003])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
def test_true_positions(size: int, share: float) -> None:
    mask = np.random.default_rng(size).random(size) < share
    found = true_positions(mask, int(mask.sum()))
    assert found.tolist() == [i for i, kept in enumerate(mask) if kept]
    # Part of a longer vector, as a tensor's levels are: where it begins in memory is no multiple of eight bytes.
    longer = np.concatenate([np.ones(3, dtype=np.bool_), mask])[3:]
    assert true_positions(longer, int(mask.sum())).tolist() == found.tolist()


@pytest.mark.usefixtures("_threads")
def test_by_hand() -> None:
    # . a . b
    # . . . .
    # --------
    # c d . .
    # . e . f
    codes = np.array([2, 0, 2, 0, 2, 2, 2, 2, 0, 1, 2, 2, 2, 1, 2, 0], dtype=np.uint8)
    pattern = find_pattern(codes, 1, (4, 4), at_most=6)
    assert pattern is not None
    assert pattern.kept.tolist() == [1, 3, 8, 9, 13, 15]
    assert pattern.starts.tolist() == [0, 2, 2, 4, 6]
    assert pattern.columns.tolist() == [1, 3, 0, 1, 1, 3]
    upper, lower = pattern.blocks
    # The transpose of the upper half has - | a | - | b, that of the lower one c | d e | - | f.
    assert (upper.rows, lower.rows, upper.outputs) == (slice(0, 2), slice(2, 4), 2)
    assert upper.starts.tolist() == [0, 0, 1, 1, 2]
    assert upper.columns.tolist() == [0, 0]
    assert lower.starts.tolist() == [0, 1, 3, 3, 4]
    assert lower.columns.tolist() == [0, 0, 1, 1]
    assert (upper.entries, lower.entries) == (slice(0, 2), slice(2, 6))
    assert pattern.across.tolist() == [0, 1, 2, 3, 4, 5]
    assert find_pattern(codes, 1, (4, 4), at_most=5) is None
    assert find_pattern(codes + 1, 0, (4, 4), at_most=16) is None


def in_full(pattern: Pattern) -> torch.Tensor:
    """The matrix with its entries numbered from one, put together from the blocks of its transpose."""
    outputs, inputs = pattern.shape
    matrix, numbers = torch.zeros(outputs, inputs), pattern.across + 1
    for block in pattern.blocks:
        columns = torch.repeat_interleave(torch.arange(inputs), block.starts.diff())
        matrix[block.columns.long() + block.rows.start, columns] = numbers[block.entries].float()
    return matrix


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (7, 31), (64, 80), (3, 70_000)])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_the_transpose_has_the_same_entries(shape: tuple[int, int], share: float) -> None:
    mask = np.random.default_rng(1).random(shape) < share
    mask[0, 0] = True
    codes = np.where(mask, 0, 3).astype(np.uint8).reshape(-1)
    pattern = find_pattern(codes, 2, shape, at_most=codes.size)
    assert pattern is not None
    wanted = torch.zeros(mask.size)
    wanted[torch.from_numpy(mask.reshape(-1))] = torch.arange(1, int(mask.sum()) + 1).float()
    assert torch.equal(in_full(pattern).view(-1), wanted)
    assert pattern.kept.tolist() == np.flatnonzero(mask).tolist()
    rows = torch.repeat_interleave(torch.arange(shape[0]), pattern.starts.diff())
    assert torch.equal(rows * shape[1] + pattern.columns, pattern.kept.long())


def test_a_half_without_weights_has_no_block() -> None:
    pattern = find_pattern(np.array([1, 1, 1, 1, 1, 0], dtype=np.uint8), 0, (2, 3), at_most=6)
    assert pattern is not None
    assert [(block.rows, block.entries) for block in pattern.blocks] == [(slice(1, 2), slice(0, 1))]
    assert pattern.starts.tolist() == [0, 0, 1]
