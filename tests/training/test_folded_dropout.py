"""Dropout of many clients; without a GPU in Triton's interpreter: `make test-kernels`."""

import pytest
import torch

from fedgmr.training.execution import TRITON
from training.folded_clients import DEVICE, RUNS, draw

if TRITON:
    from fedgmr.training.folded.dropout import drop

SEEDS = torch.tensor([5, 2**62 + 1, -3])


@RUNS
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_a_share_is_dropped_and_the_mean_stays(p: float) -> None:
    kept = drop(torch.ones((3, 5000), device=DEVICE), p, SEEDS.to(DEVICE), 2)
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(1 / (1 - p)).item()}
    for client in range(3):  # four standard deviations
        assert abs(float((kept[client] == 0).float().mean()) - p) <= 4 * (p * (1 - p) / 5000) ** 0.5
    places = torch.arange(5000, device=DEVICE)
    for quarter in range(4):  # every word of a block is drawn fairly
        part = kept[:, places // 512 % 4 == quarter] == 0
        assert abs(float(part.float().mean()) - p) <= 4 * (p * (1 - p) / part.numel()) ** 0.5


@RUNS
def test_the_gradient_meets_the_same_mask() -> None:
    x, dy = draw(3, 7, 301, seed=1), draw(3, 7, 301, seed=2)
    y, dx = (drop(one, 0.3, SEEDS.to(DEVICE), 4) for one in (x, dy))
    assert torch.equal(y == 0, dx == 0)
    assert torch.equal(y[y != 0], (x * torch.tensor(1 / 0.7))[y != 0])


@RUNS
def test_masks_differ_by_client_seed_and_number_and_not_by_company() -> None:
    x, seeds = torch.ones((3, 2500), device=DEVICE), SEEDS.to(DEVICE)
    masks = [drop(x, 0.5, seeds, 1), drop(x, 0.5, seeds, 2), drop(x, 0.5, seeds + 1, 1)]
    rows = [row for mask in masks for row in mask]
    for place, row in enumerate(rows):
        for other in rows[:place]:
            assert 0.4 < float((row == other).float().mean()) < 0.6
    for client in range(3):
        assert torch.equal(drop(x[:1], 0.5, seeds[client : client + 1], 1)[0], masks[0][client])
    assert torch.equal(drop(x[:, :700].contiguous(), 0.5, seeds, 1), masks[0][:, :700])


@RUNS
def test_nothing_and_everything() -> None:
    x = draw(3, 40)
    assert torch.equal(drop(x, 0.0, SEEDS.to(DEVICE), 1), x)
    assert not drop(x, 1.0, SEEDS.to(DEVICE), 1).any()
