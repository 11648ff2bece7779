"""Attention of many clients against the plain formula; without a GPU in Triton's interpreter: `make test-kernels`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedgmr.training.execution import TRITON
from training.folded_clients import DEVICE, RUNS, draw, far

if TRITON:
    from fedgmr.training.folded.attention import Attention

SEEDS = torch.tensor([11, 12, 2**40])


def plain(qkv: Tensor, heads: int, seen: Tensor, factor: Tensor | float = 1.0) -> Tensor:
    """The formula; `factor` is the dropout's."""
    samples, length, columns = qkv.shape
    query, key, value = qkv.view(samples, length, 3, heads, columns // 3 // heads).permute(2, 0, 3, 1, 4)
    score = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
    weight = score.masked_fill(~seen, float("-inf")).softmax(3) * factor
    return (weight @ value).transpose(1, 2).flatten(2)


def results(qkv: Tensor, heads: int, hidden: Any, dout: Tensor, **drop: Any) -> list[Tensor]:
    """The result and the gradient."""
    attention = Attention(heads=heads, hidden=hidden, precision="ieee", **drop)
    out, heights = attention.forward(qkv)
    return [out, attention.backward(dout, qkv, out, heights)]


def drawn(samples: int, length: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    """Projections and the gradient of the result."""
    return draw(samples, length, 3 * heads * size, seed=1), draw(samples, length, heads * size, seed=2)


def given(length: int) -> Tensor:
    """A mask in which every query sees something."""
    mask = draw(length, length, seed=3) > 0.3
    return mask & ~torch.eye(length, dtype=torch.bool, device=DEVICE)


@RUNS
@pytest.mark.parametrize("hidden", ["none", "causal", "given"])
@pytest.mark.parametrize(("length", "heads", "size"), [(20, 3, 24), (5, 2, 4), (100, 1, 20)])
def test_it_agrees_with_the_formula(length: int, heads: int, size: int, hidden: str) -> None:
    qkv, dout = drawn(2, length, heads, size)
    seen = torch.ones((length, length), dtype=torch.bool, device=DEVICE)
    mask: Any = given(length) if hidden == "given" else hidden
    seen = seen.tril() if hidden == "causal" else ~mask if hidden == "given" else seen
    leaf = qkv.double().requires_grad_()
    out = plain(leaf, heads, seen)
    wanted = [out, *torch.autograd.grad(out, leaf, dout.double())]
    for one, other in zip(results(qkv, heads, mask, dout), wanted, strict=True):
        assert far(one, other) <= 3e-6


@RUNS
@pytest.mark.parametrize(("length", "heads"), [(20, 2), (100, 1)])
def test_dropout_has_one_mask_in_both_passes(length: int, heads: int) -> None:
    size = length  # values that are unit vectors show the weights
    qkv, dout = drawn(3, length, heads, size)
    qkv.view(3, length, 3, heads, size)[:, :, 2] = torch.eye(length, device=DEVICE)[:, None]
    drop = {"p": 0.25, "seeds": SEEDS.to(DEVICE), "number": 3}
    weights = results(qkv, heads, "none", dout, **drop)[0].view(3, length, heads, size).transpose(1, 2)
    dropped = weights == 0
    assert abs(float(dropped.float().mean()) - 0.25) < 4 * (0.1875 / dropped.numel()) ** 0.5
    leaf = qkv.double().requires_grad_()
    seen = torch.ones((length, length), dtype=torch.bool, device=DEVICE)
    out = plain(leaf, heads, seen, (~dropped).double() / 0.75)
    wanted = [out, *torch.autograd.grad(out, leaf, dout.double())]
    for one, other in zip(results(qkv, heads, "none", dout, **drop), wanted, strict=True):
        assert far(one, other) <= 3e-6


@RUNS
def test_masks_differ_by_client_sample_head_and_number() -> None:
    qkv = torch.ones((4, 24, 3 * 2 * 24), device=DEVICE)
    qkv.view(4, 24, 3, 2, 24)[:, :, 2] = torch.eye(24, device=DEVICE)[:, None]
    masks = []
    for number in (1, 2):
        drop = {"p": 0.5, "seeds": SEEDS[:2].to(DEVICE), "number": number}
        weights = results(qkv, 2, "none", qkv[..., :48].contiguous(), **drop)[0].view(4, 24, 2, 24)
        masks += [mask.flatten() for mask in (weights == 0).transpose(1, 2).flatten(0, 1)]
    for place, mask in enumerate(masks):
        for other in masks[:place]:
            assert 0.4 < float((mask == other).float().mean()) < 0.6


@RUNS
@pytest.mark.parametrize("length", [20, 100])
def test_a_client_does_not_depend_on_its_company(length: int) -> None:
    qkv, dout = drawn(6, length, 2, 8)
    seeds = SEEDS.to(DEVICE)
    together = results(qkv, 2, "causal", dout, p=0.2, seeds=seeds, number=1)
    for client in range(3):
        part = slice(2 * client, 2 * client + 2)
        alone = results(qkv[part], 2, "causal", dout[part], p=0.2, seeds=seeds[client : client + 1], number=1)
        assert all(torch.equal(one[part], other) for one, other in zip(together, alone, strict=True))


@RUNS
@pytest.mark.parametrize("length", [6, 100])
def test_a_query_that_sees_nothing_gives_zeros(length: int) -> None:
    qkv, dout = drawn(1, length, 1, 8)
    mask = torch.zeros((length, length), dtype=torch.bool, device=DEVICE)
    mask[2] = True
    out, slopes = results(qkv, 1, mask, dout)
    assert not out[:, 2].any()
    assert not slopes[:, 2, :8].any()
    assert bool(slopes.isfinite().all())
