"""Weighted sums and means of contributions on a GPU, in one pass over what is buffered: one kernel, one small table.

Whole models in natural order come first, then the others by level map, so that a map is read once for all of its
contributions. Read next: `sums.py`, the same for any device; `merge_kernels.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgmr.server.buffer import Contribution
from fedgmr.transfer import sent

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
_DEVICE = "cuda"


def add_up(
    contributions: Sequence[Contribution], weights: Mapping[int, float], model: Tensor, *, mean: bool
) -> Tensor | None:
    """Σ weight·value, or the weighted mean over those that hold a coordinate; None where the kernel cannot do it.

    The mean is `model` where nobody holds a coordinate.
    """
    if merge_kernels is None or model.device.type != _DEVICE or model.dtype != torch.float32:
        return None
    types = {c.values.dtype for c in contributions}
    if len(types) != 1 or not types <= set(_TYPES):
        return None
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
    value = _TYPES[types.pop()]
    merge_kernels.weighted[(-(-size // _SIZE),)](
        sent(torch.from_numpy(table), model.device), model, out, size, len(held), mean, value, _COLUMNS, _SIZE
    )
    return out
