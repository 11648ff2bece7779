"""The weights of convolutions with inputs and outputs exchanged, for the gradients of what stands before them.

The sum of such a gradient goes over the outputs, and the card's newer matrix instructions take TF32 numbers only where
those of a sum lie side by side. Copies are made beside the forward pass. Read next: `convolution.py`.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product

import torch
import triton
import triton.language as tl
from torch import Tensor

_OUTPUTS, _INPUTS = 64, 64
_ALIGNED = 16


class Turned:
    """The weights of every convolution in the order input, height, width, output."""

    def __init__(self, at: Mapping[str, tuple[int, torch.Size]], most: int, device: torch.device) -> None:
        """Take memory for up to `most` clients; `at` says where in a row parameters begin, and their shapes there."""
        self._at: dict[str, tuple[int, int]] = {}  # of each convolution: where it begins here, and its numbers
        blocks: list[Sequence[int]] = []
        row = 0
        for name, (begin, (outputs, *sides)) in at.items():
            if len(sides) < 2:
                continue
            *taps, inputs = sides
            for tap in range(math.prod(taps)):
                starts = product(range(0, outputs, _OUTPUTS), range(0, inputs, _INPUTS))
                blocks += [(begin, row, outputs, inputs, math.prod(taps), tap, *start) for start in starts]
            size = outputs * math.prod(sides)
            self._at[name] = row, size
            row += -(-size // _ALIGNED) * _ALIGNED
        self._blocks = torch.tensor(blocks, dtype=torch.int32, device=device)
        self.rows = torch.zeros((most, row), device=device)

    def __bool__(self) -> bool:
        """Whether there is anything to turn."""
        return bool(self._at)

    def of(self, weight: str, count: int) -> Tensor:
        """Those of a convolution [count, numbers], by the name of its weight."""
        begin, size = self._at[weight]
        return self.rows[:count, begin : begin + size]

    def turn(self, weights: Tensor, count: int) -> None:
        """Copy the first `count` rows of weights."""
        _turn[(len(self._blocks), count)](
            weights, self.rows, self._blocks, weights.stride(0), self.rows.stride(0), self._blocks.shape[1],
            OUTPUTS=_OUTPUTS, INPUTS=_INPUTS,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _turn(  # type: ignore[no-untyped-def]
    weights, rows, blocks, row, own_row, columns, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr
):
    """One tap of a block of outputs and inputs."""
    client = tl.program_id(1).to(tl.int64)
    block = blocks + tl.program_id(0) * columns
    begin, own_begin, outputs, inputs = tl.load(block), tl.load(block + 1), tl.load(block + 2), tl.load(block + 3)
    taps, tap = tl.load(block + 4), tl.load(block + 5)
    output = tl.load(block + 6) + tl.arange(0, OUTPUTS)
    channel = tl.load(block + 7) + tl.arange(0, INPUTS)
    inside = (output < outputs)[:, None] & (channel < inputs)[None, :]
    given = weights + client * row + begin + (output[:, None] * taps + tap) * inputs + channel[None, :]
    to = rows + client * own_row + own_begin + (channel[:, None] * taps + tap) * outputs + output[None, :]
    tl.store(to, tl.trans(tl.load(given, mask=inside, other=0.0)), mask=tl.trans(inside))
