"""Which channels each client's layers have in a step, where sub-models are by width.

Sub-models are whole nets with zeros (`narrow.py`). Products need not visit what lies before a client's first channel of
a layer or behind its last. The channels are read off the level map, of which a layer's weights have an entry for every
pair of an output and an input; the taps of a convolution have the same. Read next: `net.py`.
"""

import math
from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.stacked.convolution import Ranges
from fedgmr.training.stacked.row_kernels import NOWHERE

_OUTPUTS, _INPUTS, _SIZE = 32, 64, 1024


class Spans:
    """The ranges of all layers; their memory stays where it is."""

    def __init__(self, at: Mapping[str, tuple[int, torch.Size]], most: int, device: torch.device) -> None:
        """Take memory for up to `most` clients; `at` says where in a row parameters begin, and their shapes there."""
        matrices = {name: place for name, place in at.items() if len(place[1]) > 1}
        self._layers = {name: number for number, name in enumerate(matrices)}
        blocks: list[Sequence[int]] = []
        ends: list[Sequence[int]] = []  # of each layer's inputs, then of its outputs, among all channels
        channels = 0
        for begin, (outputs, *taps, inputs) in matrices.values():
            step = math.prod(taps) * inputs
            blocks += [(begin, outputs, step, inputs, channels, start) for start in range(0, outputs, _OUTPUTS)]
            ends += [(channels, channels + inputs), (channels + inputs, channels + inputs + outputs)]
            channels += inputs + outputs
        self._blocks, self._ends = (torch.tensor(rows, dtype=torch.int32, device=device) for rows in (blocks, ends))
        self._least = torch.zeros((most, channels), dtype=torch.int32, device=device)  # the smallest level that has it
        self._ranges = torch.zeros((len(ends), 2, most), dtype=torch.int32, device=device)

    def look(self, levels: Tensor, count: int) -> None:
        """See which level has which channel, for `count` clients with these levels [clients, row]."""
        self._least[:count].fill_(NOWHERE.value)
        _look[(len(self._blocks), count)](
            levels, self._blocks, self._least, levels.stride(0), self._least.stride(0), self._blocks.shape[1],
            OUTPUTS=_OUTPUTS, INPUTS=_INPUTS,
        )  # fmt: skip

    def find(self, limits: Tensor, count: int) -> None:
        """Find the channels of a step whose levels go up to `limits`."""
        _find[(len(self._ends), count)](
            self._least, self._ends, limits, self._ranges, self._least.stride(0), self._ranges.stride(1), SIZE=_SIZE
        )

    def of(self, layer: str) -> Ranges:
        """The range of a layer's inputs and that of its outputs, of every client; by the name of its weight."""
        number = 2 * self._layers[layer]
        return Ranges(self._ranges[number], self._ranges[number + 1], self._ranges.stride(1), True)


@triton.jit  # type: ignore[untyped-decorator]
def _look(  # type: ignore[no-untyped-def]
    levels, blocks, least, row, channels, columns, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr
):
    """The smallest levels of a block of outputs, and among these of every input."""
    client = tl.program_id(1).to(tl.int64)
    block = blocks + tl.program_id(0) * columns
    outputs, step, inputs = tl.load(block + 1), tl.load(block + 2), tl.load(block + 3)
    levels += client * row + tl.load(block)
    least += client * channels + tl.load(block + 4)
    output = tl.load(block + 5) + tl.arange(0, OUTPUTS)
    mine = tl.full([OUTPUTS], NOWHERE, tl.int32)
    for start in range(0, inputs, INPUTS):
        channel = start + tl.arange(0, INPUTS)
        inside = (output < outputs)[:, None] & (channel < inputs)[None, :]
        at = output[:, None] * step + channel[None, :]
        level = tl.load(levels + at, mask=inside, other=NOWHERE).to(tl.int32)
        mine = tl.minimum(mine, tl.min(level, 1))
        tl.atomic_min(least + channel, tl.min(level, 0), mask=channel < inputs)
    tl.atomic_min(least + inputs + output, mine, mask=output < outputs)


@triton.jit  # type: ignore[untyped-decorator]
def _find(least, ends, limits, ranges, channels, stride, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first channel within a client's limit, and the one behind the last; (0, 0) where there is none."""
    client = tl.program_id(1).to(tl.int64)
    begin, end = tl.load(ends + 2 * tl.program_id(0)), tl.load(ends + 2 * tl.program_id(0) + 1)
    least += client * channels + begin
    limit = tl.load(limits + client)
    count = end - begin
    first, last = count, count * 0
    for start in range(0, count, SIZE):
        channel = start + tl.arange(0, SIZE)
        held = tl.load(least + channel, mask=channel < count, other=NOWHERE) <= limit
        first = tl.minimum(first, tl.min(tl.where(held, channel, count), 0))
        last = tl.maximum(last, tl.max(tl.where(held, channel + 1, 0), 0))
    ranges += 2 * tl.program_id(0) * stride + client
    tl.store(ranges, tl.minimum(first, last))
    tl.store(ranges + stride, last)
