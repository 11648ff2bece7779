"""The weights of convolutions with inputs and outputs exchanged, for the gradients of what stands before them.

The sum of such a gradient goes over the outputs, and the card's newer matrix instructions take TF32 numbers only where
those of a sum lie side by side. Copies are made beside the forward pass. Read next: `convolution.py`.
"""

import math
from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

_OUTPUTS, _INPUTS = 64, 64


class Turned:
    """Rows in which a convolution's weights lie in the order input, height, width, output; the rest is not written."""

    def __init__(self, at: Mapping[str, tuple[int, torch.Size]], most: int, row: int, device: torch.device) -> None:
        """Take memory for up to `most` clients; `at` says where in a row parameters begin, and their shapes there."""
        blocks = [
            (begin, outputs, inputs, math.prod(taps), tap, output, channel)
            for begin, (outputs, *taps, inputs) in (place for place in at.values() if len(place[1]) > 2)
            for tap in range(math.prod(taps))
            for output in range(0, outputs, _OUTPUTS)
            for channel in range(0, inputs, _INPUTS)
        ]
        self._blocks = torch.tensor(blocks, dtype=torch.int32, device=device).view(-1, 7)
        self.rows = torch.zeros((most if blocks else 0, row), device=device)

    def __bool__(self) -> bool:
        """Whether there is anything to turn."""
        return len(self._blocks) > 0

    def turn(self, weights: Tensor, count: int) -> None:
        """Copy the first `count` rows of weights."""
        _turn[(len(self._blocks), count)](
            weights, self.rows, self._blocks, weights.stride(0), self._blocks.shape[1], OUTPUTS=_OUTPUTS, INPUTS=_INPUTS
        )


@triton.jit  # type: ignore[untyped-decorator]
def _turn(  # type: ignore[no-untyped-def]
    weights, rows, blocks, row, columns, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr
):
    """One tap of a block of outputs and inputs."""
    client = tl.program_id(1).to(tl.int64)
    block = blocks + tl.program_id(0) * columns
    begin, outputs, inputs = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    taps, tap = tl.load(block + 3), tl.load(block + 4)
    output = tl.load(block + 5) + tl.arange(0, OUTPUTS)
    channel = tl.load(block + 6) + tl.arange(0, INPUTS)
    inside = (output < outputs)[:, None] & (channel < inputs)[None, :]
    given = weights + client * row + begin + (output[:, None] * taps + tap) * inputs + channel[None, :]
    to = rows + client * row + begin + (channel[:, None] * taps + tap) * outputs + output[None, :]
    tl.store(to, tl.trans(tl.load(given, mask=inside, other=0.0)), mask=tl.trans(inside))
