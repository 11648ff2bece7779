"""Batch norm of many clients, by Triton's interpreter or on a GPU, against PyTorch in double precision."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedgmr.training.execution import TRITON
from training.folded_clients import DEVICE, RUNS, far

if TRITON:
    from fedgmr.training.folded import batch_norm

CLIENTS, MOMENTUM, EPS = 3, 0.1, 1e-5


@dataclass(frozen=True)
class Case:
    rows: int
    channels: int
    affine: bool = True
    running: bool = True
    residual: bool = False
    relu: bool = False


# Few rows, which one kernel does alone, and rows in shares, the last of which is not full.
CASES = [
    Case(7, 5),
    Case(80, 33, residual=True, relu=True),
    Case(300, 16, affine=False, running=False, relu=True),
    Case(513, 20, residual=True),
    Case(601, 70, relu=True),
    Case(700, 9, residual=True, relu=True),
    Case(520, 4, affine=False, running=False),
]


class Stack:
    """The tensors of three clients; parameters and running statistics are columns of a matrix."""

    def __init__(self, case: Case) -> None:
        made = torch.Generator().manual_seed(5)
        self.case = case
        shape = (CLIENTS, case.rows, case.channels)
        places = torch.arange(CLIENTS * case.channels).view(CLIENTS, 1, -1)
        self.x = (torch.randn(shape, generator=made) * (1 + places % 3) + places % 50).to(DEVICE)
        self.dy, self.residual = (torch.randn(shape, generator=made).to(DEVICE) for _ in range(2))
        self.matrix = torch.rand((CLIENTS, 4 * 80 + 16), generator=made).to(DEVICE)

    def parts(self, matrix: Tensor) -> list[Tensor]:
        """Gamma, beta, and the running mean and variance."""
        return [matrix[:, at : at + self.case.channels] for at in range(0, 320, 80)]

    def computed(self, clients: slice) -> list[Tensor | None]:
        """Outputs, gradients of inputs and residual, the matrix with moved statistics, one with gradients."""
        case, matrix = self.case, self.matrix[clients].clone()
        gradients = torch.full_like(matrix, 3.0)
        gamma, beta, mean, var = self.parts(matrix)
        dgamma, dbeta = self.parts(gradients)[:2]
        x, dy, residual = (tensor[clients].contiguous() for tensor in (self.x, self.dy, self.residual))
        y, means, rstds = batch_norm.forward(
            x, gamma if case.affine else None, beta if case.affine else None, (mean, var) if case.running else None,
            MOMENTUM, EPS, residual if case.residual else None, case.relu,
        )  # fmt: skip
        dx, dresidual = batch_norm.backward(
            dy, x, y, means, rstds, gamma if case.affine else None, dgamma if case.affine else None,
            dbeta if case.affine else None, case.relu, case.residual,
        )  # fmt: skip
        assert dresidual is not dy or not case.relu
        return [y, dx, dresidual, matrix, gradients]

    def wanted(self) -> list[Tensor | None]:
        """The same by PyTorch, client by client."""
        case, matrix = self.case, self.matrix.double()
        gradients = torch.full_like(matrix, 3.0)
        ys, dxs, dresiduals = [], [], []
        for i in range(CLIENTS):
            gamma, beta, mean, var = (part[i] for part in self.parts(matrix))
            x, residual = (tensor[i].double().requires_grad_() for tensor in (self.x, self.residual))
            gamma, beta = gamma.clone().requires_grad_(), beta.clone().requires_grad_()
            y = functional.batch_norm(
                x, mean if case.running else None, var if case.running else None, gamma if case.affine else None,
                beta if case.affine else None, training=True, momentum=MOMENTUM, eps=EPS,
            )  # fmt: skip
            y = y + residual if case.residual else y
            y = torch.relu(y) if case.relu else y
            y.backward(self.dy[i].double())
            ys.append(y.detach())
            dxs.append(x.grad)
            dresiduals.append(residual.grad)
            if case.affine:
                for part, parameter in zip(self.parts(gradients)[:2], (gamma, beta), strict=True):
                    assert parameter.grad is not None
                    part[i] = parameter.grad
        return [
            torch.stack(ys),
            torch.stack(dxs),
            torch.stack(dresiduals) if case.residual else None,
            matrix,
            gradients,
        ]


@RUNS
@pytest.mark.parametrize("case", CASES, ids=str)
def test_batch_norm_agrees_with_pytorch(case: Case) -> None:
    stack = Stack(case)
    for one, other in zip(stack.computed(slice(None)), stack.wanted(), strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert far(one, other) <= 5e-6


@RUNS
@pytest.mark.parametrize("case", [CASES[1], CASES[5]], ids=str)
def test_the_same_bits_however_many_there_are(case: Case) -> None:
    stack = Stack(case)
    together = stack.computed(slice(None))
    for i in range(CLIENTS):
        for one, other in zip(stack.computed(slice(i, i + 1)), together, strict=True):
            assert one is not None
            assert other is not None
            assert torch.equal(one[0], other[i])


@RUNS
def test_a_large_mean_costs_few_digits_of_the_variance() -> None:
    made = torch.Generator().manual_seed(9)
    for rows in (90, 900):
        x = (torch.randn((1, rows, 8), generator=made) + 4096.0).to(DEVICE)
        _, mean, rstd = batch_norm.forward(x, None, None, None, MOMENTUM, EPS, None, False)
        exact = x.double()
        assert torch.allclose(mean.double(), exact.mean(1), rtol=1e-6, atol=0)
        assert torch.allclose(rstd.double(), (exact.var(1, unbiased=False) + EPS).rsqrt(), rtol=1e-4, atol=0)
