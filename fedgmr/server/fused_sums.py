"""Weighted sums and means of contributions on a GPU, in one pass over what is buffered: one kernel, one small table.

Whole models in natural order come first, then the others by level map, so that a map is read once for all of its
contributions. Read next: `sums.py`, the same for any device; `merge_kernels.py`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedgmr.transfer import sent

if TYPE_CHECKING:
    from fedgmr.server.sums import Contribution

try:
    import triton.language as tl

    from fedgmr.server import merge_kernels

    _TYPES: dict[torch.dtype, Any] = {
        torch.float32: tl.float32,
        torch.float16: tl.float16,
        torch.bfloat16: tl.bfloat16,
    }
except ModuleNotFoundError:  # no Triton: CPU builds of PyTorch
    merge_kernels = None  # type: ignore[assignment]

_COLUMNS = 6  # of a row: addresses of values, levels and positions; level, weight, whether the map is new
_SIZE = 1024


def fusible(contributions: Sequence["Contribution"], model: Tensor) -> bool:
    """Whether these can be added up by the kernel."""
    if merge_kernels is None or model.device.type != "cuda" or model.dtype != torch.float32:
        return False
    types = {c.values.dtype for c in contributions}
    return len(types) == 1 and types.pop() in _TYPES


def weighted(
    contributions: Sequence["Contribution"], weights: Mapping[int, float], model: Tensor, *, mean: bool
) -> Tensor:
    """Σ weight·value, or the weighted mean over those that hold a coordinate, `model` where nobody does."""
    held = [c for c in contributions if weights[c.client] > 0]
    held.sort(key=lambda c: -1 if c.levels is None else c.map_version)
    shares = np.array([weights[c.client] for c in held], np.float32).view(np.int32).tolist()
    # A list of whole rows: the host has more to do here than the device.
    rows: list[tuple[int, ...]] = []
    last: int | None = None
    for c, share in zip(held, shares, strict=True):
        if c.levels is None:
            rows.append((c.values.data_ptr(), 0, 0, 0, share, 0))
        elif c.map_version == last:
            rows.append((c.values.data_ptr(), 0, 0, c.level, share, 0))
        else:
            levels, position = c.levels.levels.data_ptr(), c.levels.position.data_ptr()
            rows.append((c.values.data_ptr(), levels, position, c.level, share, 1))
            last = c.map_version
    table = np.array(rows or [(0,) * _COLUMNS], np.int64)
    out, size = torch.empty_like(model), model.numel()
    value = _TYPES[held[0].values.dtype if held else torch.float32]
    merge_kernels.weighted[(-(-size // _SIZE),)](
        sent(torch.from_numpy(table), model.device), model, out, size, len(held), mean, value, _COLUMNS, _SIZE
    )
    return out
