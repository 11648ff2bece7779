"""Long vectors in blocks that stay in a core's cache, so that several operations read and write them there once.

On an accelerator a block is the whole vector: there a kernel's start costs more than the memory it would save.
"""

import torch

_COORDINATES = 2**18


def blocks(size: int, device: torch.device, *, start: int = 0) -> list[slice]:
    """Slices that cover start..size in order."""
    step = _COORDINATES if device.type == "cpu" else max(1, size - start)
    return [slice(first, min(first + step, size)) for first in range(start, size, step)]
