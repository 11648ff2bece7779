"""The last layer with its loss against torch; without a GPU in Triton's interpreter: `make test-kernels`."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgmr.training.execution import TRITON
from training.folded_clients import DEVICE, RUNS, draw, far, held, in_rows, outside, ranged

if TRITON:
    from fedgmr.training.folded import head


def drawn(positions: int, width: int, classes: int, bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """Three clients; every third position has no weight, and a target that is none."""
    targets = torch.randint(classes, (3, positions), generator=torch.Generator().manual_seed(5)).to(DEVICE)
    weights = draw(3, positions, seed=6).abs()
    targets[:, 1::3], weights[:, 1::3] = 10**12, 0.0
    if positions > 4:
        targets[:, 4] = -100
    b = in_rows(draw(3, classes, seed=4)) if bias else None
    return draw(3, positions, width, seed=1), in_rows(2 * draw(3, classes, width, seed=3)), b, targets, weights


def results(
    hidden: Tensor, w: Tensor, b: Tensor | None, targets: Tensor, weights: Tensor, precision: str = "ieee"
) -> list[Tensor]:
    """The losses and all gradients."""
    dw, db = in_rows(torch.full_like(w, 7.0)), None if b is None else in_rows(torch.full_like(b, 7.0))
    loss, kept = head.forward(hidden, w, b, targets, weights, precision)
    head.weight_gradients(kept, hidden, w, b, dw, db, precision)
    dhidden = head.input_gradients(kept, w, precision)
    assert bool((outside(dw) == 7.0).all())
    return [loss, dhidden, dw] + ([] if db is None else [db])


def exact(hidden: Tensor, w: Tensor, b: Tensor | None, targets: Tensor, weights: Tensor) -> list[Tensor]:
    """The same by torch, in double precision."""
    hidden64, w64 = hidden.double().requires_grad_(), w.double().requires_grad_()
    b64 = None if b is None else b.double().requires_grad_()
    logits = torch.einsum("ctw,cvw->ctv", hidden64, w64) + (0.0 if b64 is None else b64[:, None])
    each = cross_entropy(logits.flatten(0, 1), targets.where(weights > 0, 0).flatten(), reduction="none")
    loss = (each.view_as(targets) * weights.double()).sum(1)
    return [loss, *torch.autograd.grad(loss.sum(), [hidden64, w64] + ([] if b64 is None else [b64]))]


@RUNS
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    ("positions", "width", "classes", "bias"),
    [(5, 7, 11, True), (130, 40, 150, False), (40, 96, 560, True), (3, 100, 70, True)],
)
def test_losses_and_gradients_agree_with_torch(
    positions: int, width: int, classes: int, bias: bool, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 10**9 if written else 1)
    given = drawn(positions, width, classes, bias)
    found, wanted = results(*given), exact(*given)
    for one, other in zip(found, wanted, strict=True):
        assert far(one, other) <= 1e-5  # logits reach 40, and their rounding is of a power what it is of one


@RUNS
@pytest.mark.parametrize(("large", "small", "counts"), [(1.0, 0.1, 1.0), (1e6, 1e-7, 1e-9), (1e-9, 1e8, 1e5)])
def test_half_precision_loses_no_range(
    large: float, small: float, counts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 1)
    hidden, w, b, targets, weights = drawn(130, 40, 150, True)
    weights[2] *= 1e-3
    given = large * hidden, in_rows(small * w), b, targets, counts * weights
    found, wanted = results(*given, precision="tf32"), exact(*given)
    for client in range(3):
        for one, other in zip(found, wanted, strict=True):
            assert far(one[client], other[client]) <= 2e-3


@RUNS
def test_half_precision_has_the_gradients_of_unlikely_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 1)
    hidden, w, b, targets, weights = drawn(130, 40, 150, True)
    assert b is not None
    b[:, ::2] -= 12.0  # shares of about 4e-8 of all powers, where half precision alone ends at 6e-8
    targets |= 1
    given = hidden, in_rows(0.05 * w), b, targets, weights
    found, wanted = results(*given, precision="tf32")[2], exact(*given)[2]
    assert far(found[:, ::2], wanted[:, ::2]) <= 2e-3
    assert 0 < float(wanted[:, ::2].abs().max()) < 1e-4


@RUNS
@pytest.mark.parametrize(("written", "precision"), [(True, "ieee"), (False, "ieee"), (False, "tf32")])
def test_a_client_does_not_depend_on_its_company(
    written: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 10**9 if written else 1)
    everything = drawn(20, 24, 1030, True)
    together = results(*everything, precision=precision)
    for client in range(3):
        own = [None if one is None else one[client : client + 1] for one in everything]
        alone = results(*own, precision=precision)  # type: ignore[arg-type]
        assert all(torch.equal(one[client], other[0]) for one, other in zip(together, alone, strict=True))


@RUNS
def test_wide_layers_and_many_classes_take_their_own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    for width, classes, kept in ((8, 12, 1), (8, 2048, 8), (130, 2048, 1)):
        hidden, w, b, targets, weights = drawn(2, width, classes, False)
        assert len(head.forward(hidden, w, b, targets, weights, "ieee")[1]) == kept


@RUNS
def test_positions_without_weight_give_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 1)
    hidden, w, b, targets, weights = drawn(140, 8, 70, True)
    weights[0], weights[1, :100] = 0.0, 0.0
    loss, dhidden, dw, db = results(hidden, w, b, targets, weights)
    assert not any(bool(one[0].any()) for one in (loss, dhidden, dw, db))
    assert not dhidden[weights == 0.0].any()
    assert b is not None
    rest = [one[1:2, 100:].contiguous() for one in (hidden, targets, weights)]
    alone = results(rest[0], w[1:2], b[1:2], *rest[1:])
    assert torch.equal(alone[2][0], dw[1])


@RUNS
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("size", [2.0**7, 2.0**13, 2.0**20])
def test_large_logits_stay_finite(size: float, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for least in (1, 10**9):
        monkeypatch.setattr(head, "LEAST_CLASSES", least)
        hidden, w, b, targets, weights = drawn(4, 8, 600, False)
        found = results(size * hidden, in_rows(size * w), b, targets, weights, precision=precision)
        assert all(bool(one.isfinite().all()) for one in found)
        given = size * hidden.round(), in_rows(size * w.round()), b, targets, weights  # products without rounding
        found, wanted = results(*given, precision=precision), exact(*given)
        assert max(far(one, other) for one, other in zip(found, wanted, strict=True)) <= 0.1  # of equal logits


@RUNS
@pytest.mark.parametrize("padding", [float("inf"), float("nan"), -1e30])
def test_hidden_values_without_weight_count_for_nothing(padding: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 1)
    hidden, w, b, targets, weights = drawn(40, 24, 150, True)
    wanted = results(hidden, w, b, targets, weights, precision="tf32")
    hidden = hidden.masked_fill(weights[:, :, None] == 0, padding)
    for one, other in zip(results(hidden, w, b, targets, weights, precision="tf32"), wanted, strict=True):
        assert torch.equal(one, other)


@RUNS
@pytest.mark.parametrize(("written", "precision"), [(True, "ieee"), (False, "ieee"), (False, "tf32")])
def test_absent_classes_count_as_zero(written: bool, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 10**9 if written else 1)
    hidden, w, b, targets, weights = drawn(40, 12, 150, bias=True)
    assert b is not None
    absent = torch.rand((3, 150), generator=torch.Generator().manual_seed(9)).to(DEVICE) < 0.4
    absent.scatter_(1, targets.where(weights > 0, 0), False)
    dw, db = in_rows(torch.zeros_like(w)), in_rows(torch.zeros_like(b))
    loss, kept = head.forward(hidden, w, b, targets, weights, precision, absent=absent)
    head.weight_gradients(kept, hidden, w, b, dw, db, precision)
    found = [loss, head.input_gradients(kept, w, precision), dw, db]
    leaves = [part.double().requires_grad_() for part in (hidden, w, b)]
    logits = (torch.einsum("ctw,cvw->ctv", *leaves[:2]) + leaves[2][:, None]).masked_fill(absent[:, None], 0.0)
    each = cross_entropy(logits.flatten(0, 1), targets.where(weights > 0, 0).flatten(), reduction="none")
    wanted = (each.view_as(targets) * weights.double()).sum(1)
    for one, other in zip(found, [wanted, *torch.autograd.grad(wanted.sum(), leaves)], strict=True):
        assert far(one, other) <= (1e-5 if precision == "ieee" else 2e-3)
    assert not bool(dw[absent].any()), "what is absent has no gradient"


@RUNS
@pytest.mark.parametrize(("written", "precision"), [(True, "ieee"), (False, "ieee"), (False, "tf32")])
def test_what_clients_do_not_have_is_left_out(written: bool, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "LEAST_CLASSES", 10**9 if written else 1)
    given = [(0, 7), (36, 64), (40, 81)]  # in one piece of 32, in one from 32 on, in none
    hidden, w, b, targets, weights = drawn(140, 96, 150, bias=True)
    assert b is not None
    inside, ranges = held(given, 96), ranged(given, [(0, 150)] * 3)
    hidden = hidden * inside[:, None]
    w.mul_(inside[:, None])
    dw, db = in_rows(torch.full_like(w, torch.nan)), in_rows(torch.full_like(b, 7.0))
    loss, kept = head.forward(hidden, w, b, targets, weights, precision, ranges)
    head.weight_gradients(kept, hidden, w, b, dw, db, precision, ranges)
    found = [loss, head.input_gradients(kept, w, precision, ranges), dw.where(inside[:, None], 0.0), db]
    wanted = results(hidden, w, b, targets, weights, precision)
    wanted[2] = wanted[2].where(inside[:, None], 0.0)
    for one, other in zip(found, wanted, strict=True):
        assert far(one, other) <= (1e-6 if precision == "ieee" else 1e-3)
    if not written:
        assert bool(dw[0, :, 32:].isnan().all()), "nobody computed it"
        assert bool(dw[2].isfinite().all()), "all of it"
