"""Dropout on a CPU: by hand, as often as it should, and from its generator alone."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from fedgmr.submodels.channels.calls import Resizing
from fedgmr.training.plain.dropout import OwnDropout


def draws_of(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ones(*shape: int, last: bool = False) -> Tensor:
    form = torch.channels_last if last else torch.contiguous_format
    return torch.ones(*shape).contiguous(memory_format=form).requires_grad_()


def test_sixteen_bits_decide() -> None:
    words = torch.empty(8, dtype=torch.int64).random_(-(2**63), None, generator=draws_of())
    lanes = [(word >> shift) % 2**16 for word in words.tolist() for shift in (0, 16, 32, 48)][:30]
    signed = [lane - 2**16 if lane >= 2**15 else lane for lane in lanes]
    found = OwnDropout(0.25, draws_of())(torch.full((30,), 3.0))
    assert found.tolist() == [4.0 if lane >= -(2**14) else 0.0 for lane in signed]
    assert set(found.tolist()) == {0.0, 4.0}


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_often_as_it_should(p: float, dtype: torch.dtype) -> None:
    size = 400_000
    found = OwnDropout(p, draws_of())(torch.ones(size, dtype=dtype))
    dropped = int((found == 0).sum())
    assert abs(dropped - p * size) < 5 * (size * p * (1 - p)) ** 0.5
    assert torch.equal(found[found != 0], torch.full((size - dropped,), 1 / (1 - p), dtype=dtype))


@pytest.mark.parametrize("last", [False, True])
def test_gradients_and_memory_lie_like_the_inputs(last: bool) -> None:
    inputs = ones(4, 3, 5, 5, last=last)
    found = OwnDropout(0.3, draws_of())(inputs)
    assert found.stride() == inputs.stride()
    (slopes,) = torch.autograd.grad(found.sum(), inputs)
    assert torch.equal(slopes, found)
    assert 0 < int((found == 0).sum()) < found.numel()
    assert torch.equal(OwnDropout(0.3, draws_of())(inputs), found)
    assert not torch.equal(OwnDropout(0.3, draws_of(8))(inputs), found)


def test_what_is_not_dropped() -> None:
    inputs, draws = ones(6), draws_of()
    before = draws.get_state()
    assert OwnDropout(0.4, draws).eval()(inputs) is inputs
    assert OwnDropout(0.0, draws)(inputs) is inputs
    assert OwnDropout(1.0, draws)(inputs).tolist() == [0.0] * 6
    assert torch.equal(draws.get_state(), before)
    assert OwnDropout(0.4, draws)(inputs[:0]).tolist() == []


def test_only_its_generator_is_drawn_from() -> None:
    before = torch.default_generator.get_state()
    OwnDropout(0.4, draws_of())(ones(100))
    assert torch.equal(torch.default_generator.get_state(), before)


def test_all_plain_dropout_layers_are_replaced_and_copies_share_the_draws() -> None:
    draws = torch.Generator()
    net = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2)), nn.Dropout2d(0.3))
    found = deepcopy(OwnDropout.install(net, draws))
    kinds = [type(layer) for layer in found.modules()]
    assert kinds.count(OwnDropout) == 2
    assert kinds.count(nn.Dropout2d) == 1
    assert all(layer.generator is draws for layer in found.modules() if isinstance(layer, OwnDropout))


def test_sizes_in_small_modules_are_counted_without_dropout() -> None:
    inputs, draws = torch.ones(3, 5), torch.Generator().manual_seed(4)
    expected = OwnDropout(0.5, draws)(inputs)
    draws.manual_seed(4)
    with Resizing((), torch.ones(1, dtype=torch.bool)):  # refuses calls that name sizes and were not met before
        assert torch.equal(OwnDropout(0.5, draws)(inputs), expected)
