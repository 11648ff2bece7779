"""Layer normalisation of many clients against torch; without a GPU in Triton's interpreter: `make test-kernels`."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm as normalised

from fedgmr.training.execution import TRITON
from training.folded_clients import RUNS, draw, far, in_rows, outside

if TRITON:
    from fedgmr.training.folded import layer_norm


def results(x: Tensor, g: Tensor | None, b: Tensor | None, dy: Tensor, eps: float | None = 1e-3) -> list[Tensor]:
    """The normalised rows and all gradients."""
    dg, db = (None if one is None else in_rows(torch.full_like(one, 7.0)) for one in (g, b))
    y, mean, rstd = layer_norm.forward(x, g, b, eps)
    dx = layer_norm.backward(dy, x, mean, rstd, g, dg, db)
    written = [one for one in (dg, db) if one is not None]
    assert all(bool((outside(one) == 7.0).all()) for one in written)
    return [y, dx, *written]


def drawn(rows: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs away from zero, scale, shift, gradient."""
    g, b = (in_rows(draw(3, width, seed=seed)) for seed in (2, 3))
    return draw(3, rows, width, seed=1) * 3 + 5, g, b, draw(3, rows, width, seed=4)


@RUNS
@pytest.mark.parametrize(("scale", "shift"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize(("rows", "width"), [(5, 7), (75, 96), (3, 2500)])
def test_rows_agree_with_torch(rows: int, width: int, scale: bool, shift: bool) -> None:
    x, g, b, dy = drawn(rows, width)
    found = results(x, g if scale else None, b if shift else None, dy)
    leaves = [x.double().requires_grad_()] + [one.double().requires_grad_() for one in [g] * scale + [b] * shift]
    y = normalised(leaves[0], (width,), eps=1e-3)
    y = y * leaves[1][:, None] if scale else y
    y = y + leaves[2][:, None] if shift else y
    for one, other in zip(found, [y, *torch.autograd.grad(y, leaves, dy.double())], strict=True):
        assert far(one, other) <= 2e-6


@RUNS
@pytest.mark.parametrize(("rows", "width"), [(5, 7), (70, 140), (33, 64)])
def test_scale_and_shift_agree_with_torch(rows: int, width: int) -> None:
    x, g, b, dy = drawn(rows, width)
    leaves = [one.double().requires_grad_() for one in (x, g, b)]
    y = leaves[0] * leaves[1][:, None] + leaves[2][:, None]
    for one, other in zip(results(x, g, b, dy, None), [y, *torch.autograd.grad(y, leaves, dy.double())], strict=True):
        assert far(one, other) <= 2e-6
    assert far(results(x, g, None, dy, None)[0], y - leaves[2][:, None]) <= 1e-6


@RUNS
def test_a_client_does_not_depend_on_its_company() -> None:
    x, g, b, dy = drawn(75, 40)
    together = results(x, g, b, dy)
    for client in range(3):
        part = slice(client, client + 1)
        alone = results(x[part], g[part], b[part], dy[part])
        assert all(torch.equal(one[client], other[0]) for one, other in zip(together, alone, strict=True))


@RUNS
@pytest.mark.parametrize(("rows", "width"), [(5, 7), (75, 96)])
def test_columns_that_a_client_does_not_have_do_not_count(rows: int, width: int) -> None:
    x, g, b, dy = drawn(rows, width)
    kept = torch.arange(width, device=x.device) < torch.tensor([[width], [width // 2], [3]], device=x.device)
    y, mean, rstd = layer_norm.forward(x, g, b, 1e-3, kept)
    dg, db = in_rows(torch.zeros_like(g)), in_rows(torch.zeros_like(b))
    dx = layer_norm.backward(dy, x, mean, rstd, g, dg, db, kept)
    for client, count in enumerate(kept.sum(1).tolist()):
        leaves = [part[client, ..., :count].double().requires_grad_() for part in (x, g, b)]
        wanted = normalised(leaves[0], (count,), leaves[1], leaves[2], eps=1e-3)
        gradients = torch.autograd.grad(wanted, leaves, dy[client, :, :count].double())
        found = [part[client, ..., :count] for part in (y, dx, dg, db)]
        for one, other in zip(found, [wanted, *gradients], strict=True):
            assert far(one, other) <= 2e-6
        assert not bool(y[client, :, count:].any() | dx[client, :, count:].any())
