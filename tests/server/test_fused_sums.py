"""A merge by one kernel against sums of many operations; without a GPU in Triton's interpreter: `make test-kernels`."""

import os

import pytest
import torch

from fedgmr.server import fused_sums
from fedgmr.server.buffer import Contribution
from fedgmr.server.sums import mean_of, total_of
from fedgmr.submodels.levels import LevelMap

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
pytestmark = pytest.mark.skipif(
    fused_sums.merge_kernels is None or (DEVICE == "cuda" and not torch.cuda.is_available()),
    reason="needs Triton and a CUDA device, or Triton's interpreter",
)
SIZE = 2500


def contributions(maps: int, dtype: torch.dtype, *, whole: bool) -> list[Contribution]:
    """Eight clients at three levels; the highest covers nine tenths unless somebody has the whole model."""
    draw = torch.Generator().manual_seed(maps)
    levels = [LevelMap.from_scores(torch.rand(SIZE, generator=draw).to(DEVICE), (0.1, 0.5, 0.9)) for _ in range(maps)]
    made = []
    for client in range(8):
        natural = whole and client == 3
        level, its = client % 3, levels[client % maps]
        size = SIZE if natural else its.sizes[level]
        made.append(
            Contribution(
                client=client,
                version=0,
                level=level,
                levels=None if natural else its,
                map_version=client % maps,
                values=torch.randn(size, generator=draw).to(DEVICE, dtype),
                buffers=torch.empty(0, device=DEVICE),
            )
        )
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("maps", [1, 2, 5])
def test_one_kernel_for_all(maps: int, whole: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    held = contributions(maps, dtype, whole=whole)
    weights = {c.client: 0.0 if c.client == 5 else 1 / (1 + c.client) for c in held}
    model = torch.randn(SIZE, device=DEVICE)
    monkeypatch.setattr(fused_sums, "_DEVICE", DEVICE)
    found = [fused_sums.add_up(held, weights, model, mean=mean) for mean in (True, False)]
    monkeypatch.setattr(fused_sums, "_DEVICE", "none")
    wanted = [mean_of(held, weights, model), total_of(held, weights, model)]
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    untouched = (wanted[0] == model) & (wanted[1] == 0)
    assert bool(untouched.any()) != whole
    assert torch.equal(found[0][untouched], model[untouched])


def test_nobody_and_mixed_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_sums, "_DEVICE", DEVICE)
    held = contributions(2, torch.float32, whole=True)
    model = torch.randn(SIZE, device=DEVICE)
    nothing = dict.fromkeys(range(8), 0.0)
    assert torch.equal(fused_sums.add_up(held, nothing, model, mean=True), model)
    half = contributions(2, torch.float16, whole=True)
    assert fused_sums.add_up([held[0], half[1]], nothing, model, mean=True) is None
    assert fused_sums.add_up(held, nothing, model.double(), mean=True) is None
    monkeypatch.setattr(fused_sums, "_DEVICE", "another")
    assert fused_sums.add_up(held, nothing, model, mean=True) is None
