"""Vectors in pieces: every coordinate once, and the same sums and gathers however many threads share them."""

from collections.abc import Iterator

import pytest
import torch

import fedgmr.submodels.blocks as module_under_test
from fedgmr.submodels.blocks import Addend, blocks, gather, scatter_add

LONG = 2**19 + 12_345  # long enough to be shared out


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [0, 1, LONG, 2**20, 2**20 + 1])
def test_blocks_cover_a_vector_once(size: int) -> None:
    pieces = blocks(size, torch.device("cpu"))
    assert torch.cat([torch.arange(size)[piece] for piece in pieces] or [torch.empty(0)]).tolist() == list(range(size))
    assert blocks(size, torch.device("cuda")) == ([slice(0, size)] if size else [])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gather(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    source, index = torch.randn(LONG, generator=draw), torch.randperm(LONG, generator=draw).to(dtype)
    assert torch.equal(gather(source, index), source[index.long()])
    assert gather(source, index[:3]).tolist() == [source[i].item() for i in index[:3].tolist()]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("block", [2**20, 100_000])
def test_scatter_add_in_runs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "_BLOCK", block)
    draw = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, 4, (LONG,), generator=draw)
    index = torch.cat([torch.nonzero(kinds == kind).view(-1) for kind in range(3)])  # three rising runs
    stops = [int((kinds <= kind).sum()) for kind in range(4)]  # the last lies past the end
    target, values = torch.randn(LONG, generator=draw), torch.randn(len(index), generator=draw)
    expected = target.clone()
    expected[index] += values
    once = Addend(values=values, index=index, stops=stops)
    scatter_add(target, [once])
    assert torch.equal(target, expected)
    few = Addend(values=torch.tensor([1.0, 2.0, 4.0]), index=torch.tensor([5, LONG - 1, 0]), stops=[2, 3])
    expected[index] += values
    expected[few.index] += few.values
    scatter_add(target, [once, few])
    assert torch.equal(target, expected)
    scatter_add(target, [])
    assert torch.equal(target, expected)


def test_what_of_an_addend_belongs_to_a_stretch() -> None:
    addend = Addend(values=torch.ones(5), index=torch.tensor([2, 4, 9, 0, 5]), stops=[3, 5, 8])
    assert [(part.start, part.stop) for part in addend.within(2, 5)] == [(0, 2), (4, 4), (5, 5)]
    assert [(part.start, part.stop) for part in addend.within(5, 10)] == [(2, 3), (4, 5), (5, 5)]
