"""What the tests of the folded kernels share: the device, clients with weights of their own, distances."""

import os

import pytest
import torch
from torch import Tensor

from fedgmr.training.execution import TRITON
from fedgmr.training.stacked.convolution import Ranges

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
RUNS = pytest.mark.skipif(
    not TRITON or (DEVICE == "cuda" and not torch.cuda.is_available()),
    reason="needs Triton and a CUDA device, or Triton's interpreter",
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def in_rows(values: Tensor) -> Tensor:
    """The same values, each client's somewhere in a row of a matrix, as weights lie."""
    clients, count = len(values), values[0].numel()
    length = (count + 15) // 16 * 16 + 48
    matrix = torch.full((clients + 1, length), 7.0, device=values.device)
    view = matrix[:clients].as_strided(values.shape, (length, *values[0].contiguous().stride()), 16)
    return view.copy_(values)


def ranged(given: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> Ranges:
    """Channels of clients: from the first to before the last, of the inputs and of the outputs."""
    lying = [torch.tensor(ends, dtype=torch.int32, device=DEVICE).t().contiguous() for ends in (given, wanted)]
    return Ranges(*lying, len(given), narrow=True)


def held(ends: list[tuple[int, int]], count: int) -> Tensor:
    """Which of `count` channels these clients have, bool [clients, count]."""
    channel = torch.arange(count, device=DEVICE)
    return torch.stack([(channel >= first) & (channel < last) for first, last in ends])


def far(found: Tensor, wanted: Tensor) -> float:
    """The distance, of the length."""
    assert found.shape == wanted.shape
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-9))


def outside(view: Tensor) -> Tensor:
    """What lies around a view that `in_rows` made: sevens, unless somebody wrote there."""
    clients, count = len(view), view[0].numel()
    whole = view.as_strided((clients + 1, view.stride(0)), (view.stride(0), 1), 0)
    return torch.cat([whole[:, :16], whole[:, 16 + count :]], 1)
