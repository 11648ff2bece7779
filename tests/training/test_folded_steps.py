"""Steps of many clients against torch's optimisers; without a GPU in Triton's interpreter: `make test-kernels`."""

import pytest
import torch
from torch import Tensor

from fedgmr.training.execution import TRITON
from training.folded_clients import DEVICE, RUNS, draw, far

if TRITON:
    from fedgmr.training.folded import steps

CLIENTS, ROW = 3, 1104
LIMITS, RATES = (0, 2, 1), (0.1, 0.02, 0.3)


def drawn() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights, levels of which some are in no sub-model, limits, rates."""
    levels = torch.randint(0, 4, (CLIENTS, ROW), generator=torch.Generator().manual_seed(3)).to(DEVICE, torch.uint8)
    levels[levels == 3] = 255
    limits = torch.tensor(LIMITS, dtype=torch.int32, device=DEVICE)
    return draw(CLIENTS, ROW, seed=1), levels, limits, torch.tensor(RATES, device=DEVICE)


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
        steps.sgd(weights, gradients, levels, limits, rates, velocities, momentum, decay)
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
        steps.adam(weights, gradients, levels, limits, rates, means, squares, number + 1, 0.8, 0.99, 1e-8)
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
def test_a_client_does_not_depend_on_its_company() -> None:
    weights, levels, limits, rates = drawn()
    alone = weights.clone()
    velocities = draw(CLIENTS, ROW, seed=5)
    own = velocities.clone()
    gradients = draw(CLIENTS, ROW, seed=6)
    steps.sgd(weights, gradients, levels, limits, rates, velocities, 0.9, 0.01)
    for part in (slice(client, client + 1) for client in range(CLIENTS)):
        steps.sgd(alone[part], gradients[part], levels[part], limits[part], rates[part], own[part], 0.9, 0.01)
    assert torch.equal(alone, weights)
    assert torch.equal(own, velocities)
