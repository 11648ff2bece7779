"""Linear layers of many clients against torch; without a GPU in Triton's interpreter: `make test-kernels`."""

import pytest
import torch
from torch import Tensor

from fedgmr.training.execution import TRITON
from training.folded_clients import RUNS, draw, far, held, in_rows, outside, ranged

if TRITON:
    from fedgmr.training.folded import linear


def results(x: Tensor, w: Tensor, b: Tensor | None, dy: Tensor) -> list[Tensor]:
    """The outputs and all gradients."""
    dw, db = torch.full_like(w, 7.0), None if b is None else in_rows(torch.full_like(b, 7.0))
    dw = in_rows(dw)
    y = linear.forward(x, w, b, "ieee")
    linear.weight_gradients(dy, x, dw, db, "ieee")
    dx = linear.input_gradients(dy, w, "ieee")
    assert dx is not None
    assert bool((outside(dw) == 7.0).all())
    return [y, dx, dw] + ([] if db is None else [db])


@RUNS
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "bias"),
    [(5, 7, 3, True), (70, 33, 40, True), (300, 24, 20, True), (65, 96, 130, False), (2, 600, 5, True)],
)
def test_layers_agree_with_torch(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    x, dy = draw(3, rows, inputs, seed=1), draw(3, rows, outputs, seed=2)
    w, b = in_rows(draw(3, outputs, inputs, seed=3)), in_rows(draw(3, outputs, seed=4)) if bias else None
    found = results(x, w, b, dy)
    x64, w64 = x.double().requires_grad_(), w.double().requires_grad_()
    b64 = draw(3, outputs, seed=4).double().requires_grad_() if bias else None
    y = torch.einsum("cri,coi->cro", x64, w64) + (0.0 if b64 is None else b64[:, None])
    wanted = [y, *torch.autograd.grad(y, [x64, w64] + ([] if b64 is None else [b64]), dy.double())]
    for one, other in zip(found, wanted, strict=True):
        assert far(one, other) <= 2e-6


@RUNS
def test_a_client_does_not_depend_on_its_company() -> None:
    x, dy = draw(3, 300, 24, seed=1), draw(3, 300, 20, seed=2)
    w, b = in_rows(draw(3, 20, 24, seed=3)), in_rows(draw(3, 20, seed=4))
    together = results(x, w, b, dy)
    for client in range(3):
        part = slice(client, client + 1)
        alone = results(x[part], w[part], b[part], dy[part])
        assert all(torch.equal(one[client], other[0]) for one, other in zip(together, alone, strict=True))


@RUNS
def test_what_clients_do_not_have_is_left_out() -> None:
    given, wanted = [(0, 10), (33, 96), (5, 5)], [(0, 40), (200, 210), (0, 260)]
    x, dy, ranges = draw(3, 70, 96, seed=1), draw(3, 70, 260, seed=2), ranged(given, wanted)
    before, behind = held(given, 96)[:, None], held(wanted, 260)
    w, b = in_rows(draw(3, 260, 96, seed=3) * before * behind[:, :, None]), in_rows(draw(3, 260, seed=4) * behind)
    dw, db = in_rows(torch.full_like(w, 7.0)), in_rows(torch.full_like(b, 7.0))
    linear.weight_gradients(dy, x, dw, db, "ieee", ranges)
    found = [linear.forward(x, w, b, "ieee", ranges), linear.input_gradients(dy, w, "ieee", ranges), dw, db]
    everything = results(x, w, b, dy)
    inside = before & behind[:, :, None]
    for one, other in zip(found[:2], everything[:2], strict=True):
        assert far(one, other) <= 1e-6
    assert far(dw[inside], everything[2][inside]) <= 1e-6
    assert far(db[behind], everything[3][behind]) <= 1e-6
    assert not bool(dw[0, 128:].any()), "nobody computed it"
