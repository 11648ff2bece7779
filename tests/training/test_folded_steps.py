"""Steps of many clients against torch's optimisers; without a GPU in Triton's interpreter: `make test-kernels`."""

import pytest
import torch
from torch import Tensor

from fedgmr.training.execution import TRITON
from fedgmr.training.optimizers import Adam
from fedgmr.training.thresholds import Dropping
from training.folded_clients import DEVICE, RUNS, draw, far

if TRITON:
    from fedgmr.training.folded import adam
    from fedgmr.training.stacked import row_kernels

CLIENTS, ROW, SIZE = 3, 1104, 1024
LIMITS, RATES = (0, 2, 1), (0.1, 0.02, 0.3)


def drawn() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights, levels of which some are in no sub-model, limits, rates."""
    levels = torch.randint(0, 4, (CLIENTS, ROW), generator=torch.Generator().manual_seed(3)).to(DEVICE, torch.uint8)
    levels[levels == 3] = 255
    limits = torch.tensor(LIMITS, dtype=torch.int32, device=DEVICE)
    return draw(CLIENTS, ROW, seed=1), levels, limits, torch.tensor(RATES, device=DEVICE)


def step_of_sgd(
    weights: Tensor, gradients: Tensor, levels: Tensor, limits: Tensor, rates: Tensor, velocities: Tensor | None,
    momentum: float, decay: float,
) -> None:  # fmt: skip
    """As nets of ordinary layers have it."""
    velocities = weights if velocities is None else velocities
    rules = ("all", False, momentum, decay)
    row_kernels.reduce_step[(2, len(weights))](
        gradients, weights, levels, weights, velocities, limits, rates, rates, ROW, 0, 1, ROW, *rules, SIZE
    )


def given(number: int, taken: Tensor) -> Tensor:
    """Gradients; where no step goes they are not even numbers."""
    return draw(CLIENTS, ROW, seed=10 + number).where(taken, float("nan"))


@RUNS
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.01), (0.0, 0.1)])
def test_sgd_moves_as_in_torch(momentum: float, decay: float) -> None:
    weights, levels, limits, rates = drawn()
    start, taken = weights.clone(), levels.int() <= limits[:, None]
    velocities = torch.zeros_like(weights) if momentum else None
    given_all = [given(number, taken) for number in range(3)]
    for gradients in given_all:
        step_of_sgd(weights, gradients, levels, limits, rates, velocities, momentum, decay)
    for client, rate in enumerate(RATES):
        wanted = start[client].double().requires_grad_()
        optimizer = torch.optim.SGD([wanted], lr=rate, momentum=momentum, weight_decay=decay)
        for gradients in given_all:
            wanted.grad = gradients[client].double()
            optimizer.step()
        kept = taken[client]
        assert far(weights[client][kept], wanted[kept]) <= 1e-6
        assert torch.equal(weights[client][~kept], start[client][~kept])
        if velocities is not None:
            assert bool((velocities[client][~kept] == 0.0).all())


@RUNS
def test_adam_moves_as_in_torch() -> None:
    weights, levels, limits, rates = drawn()
    start, taken = weights.clone(), levels.int() <= limits[:, None]
    means, squares = (torch.full_like(weights, float("nan")) for _ in range(2))  # a new task reads none of the last
    given_all = [given(number, taken) for number in range(3)]
    for number, gradients in enumerate(given_all):
        told = adam.numbers(Adam(beta1=0.8, beta2=0.99), number + 1)
        adam.step[(2, CLIENTS)](
            weights, gradients, levels, weights, limits, rates, rates, means, squares, ROW, *told, number == 0, "all",
            False, SIZE,
        )  # fmt: skip
    for client, rate in enumerate(RATES):
        wanted = start[client].double().requires_grad_()
        optimizer = torch.optim.Adam([wanted], lr=rate, betas=(0.8, 0.99), eps=1e-8)
        for gradients in given_all:
            wanted.grad = gradients[client].double()
            optimizer.step()
        kept = taken[client]
        assert far(weights[client][kept], wanted[kept]) <= 2e-6
        assert torch.equal(weights[client][~kept], start[client][~kept])
        assert bool((means[client][~kept] == 0.0).all())
        assert bool((squares[client][~kept] == 0.0).all())


@RUNS
@pytest.mark.parametrize("derivative", [True, False])
def test_what_adam_drops_goes_on_moving_and_comes_back(derivative: bool) -> None:
    weights, levels, limits, rates = drawn()
    levels[levels == 2] = 1  # 1: has a threshold, 0: has none
    weights[levels == 255] = 0.0
    thetas = torch.tensor((0.05, 0.01, 0.1), device=DEVICE)
    whole = torch.where(
        (levels == 1) & (weights.abs() < thetas[:, None]), weights.sign() * 1.7 * thetas[:, None], weights
    )
    weights, start = whole.clone(), whole.clone()
    fallen, means, squares = (torch.zeros_like(weights) for _ in range(3))
    optimizer, returned = Adam(beta1=0.8, beta2=0.99), 0
    mean, square = (torch.zeros_like(whole, dtype=torch.float64) for _ in range(2))
    whole = whole.double()
    theta = torch.where(levels == 1, thetas[:, None], 0.0)
    for number in range(6):
        gradients, told = given(number, levels < 255), adam.numbers(optimizer, number + 1)
        adam.step[(2, CLIENTS)](
            weights, gradients, levels, fallen, limits, thetas, rates, means, squares, ROW, *told, number == 0,
            "threshold", derivative, SIZE,
        )  # fmt: skip
        factor = torch.stack(
            [Dropping.factor(*each, derivative=derivative) for each in zip(whole, theta.double(), strict=True)]
        )
        gradient, before = gradients.double().where(levels < 255, 0.0) * factor, whole.abs() < theta
        mean, square = 0.8 * mean + 0.2 * gradient, 0.99 * square + 0.01 * gradient**2
        root = (square / (1 - 0.99 ** (number + 1))).sqrt() + 1e-8
        whole = torch.where(levels < 255, whole - rates[:, None] / (1 - 0.8 ** (number + 1)) * mean / root, whole)
        returned += int((before & (whole.abs() >= theta)).sum())
        assert torch.equal((fallen != 0) & (weights != 0), torch.zeros_like(levels, dtype=torch.bool))
    assert returned > 0
    assert far(weights + fallen, whole) <= 1e-5
    assert torch.equal(weights[levels == 255], start[levels == 255])
    assert torch.equal(fallen != 0, (whole.abs() < theta) & (levels < 255))


@RUNS
def test_a_client_does_not_depend_on_its_company() -> None:
    weights, levels, limits, rates = drawn()
    alone = weights.clone()
    velocities = draw(CLIENTS, ROW, seed=5)
    own = velocities.clone()
    gradients = draw(CLIENTS, ROW, seed=6)
    step_of_sgd(weights, gradients, levels, limits, rates, velocities, 0.9, 0.01)
    for part in (slice(client, client + 1) for client in range(CLIENTS)):
        step_of_sgd(alone[part], gradients[part], levels[part], limits[part], rates[part], own[part], 0.9, 0.01)
    assert torch.equal(alone, weights)
    assert torch.equal(own, velocities)
