"""Where targets stand among the outputs of a linear layer, and their cross-entropy: the outputs are never written.

A net that predicts one of many words has far more outputs than anything else, and a measure reads them several times. A
program keeps a block of positions, walks over all classes and carries how many are ahead of the target, the highest
output and the sum of the powers. Blocks of which nobody reads a position, such as those of padding, are left out. Read
next: `head.py`, which uses it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCKS = {  # positions, classes, and the numbers of a sum that are read at once; they only change the speed
    "tf32": {"POSITIONS": 128, "CLASSES": 128, "DEPTH": 32, "num_warps": 8, "num_stages": 3},
    "ieee": {"POSITIONS": 32, "CLASSES": 32, "DEPTH": 16, "num_warps": 4, "num_stages": 2},  # without matrix units
}


def ranks(
    hidden: Tensor, w: Tensor, b: Tensor | None, targets: Tensor, read: Tensor, precision: str
) -> tuple[Tensor, Tensor]:
    """Of every position that is read: how many classes are ahead of the target, and its cross-entropy; else nothing.

    Hidden values are [positions, width], w is [classes, width], b [classes]; `read` is of bool. Ahead is a class with a
    higher output, or with the same and a lower number. All classes are ahead of a target that is none, or whose output
    is no number.
    """
    (positions, width), classes = hidden.shape, len(w)
    ahead = torch.empty(positions, dtype=torch.int32, device=hidden.device)
    losses, blocks = torch.empty(positions, device=hidden.device), _BLOCKS[precision]
    _rank[(triton.cdiv(positions, blocks["POSITIONS"]),)](
        hidden, w, hidden if b is None else b, targets, read, ahead, losses, positions, classes, width,
        BIAS=b is not None, PRECISION=precision, **blocks,
    )  # fmt: skip
    return ahead, losses


@triton.jit  # type: ignore[untyped-decorator]
def _products(  # type: ignore[no-untyped-def]
    hidden, w, row, there, label, real, width, POSITIONS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """[positions, classes]: the outputs of the classes `label`, without the bias."""
    products = tl.zeros([POSITIONS, CLASSES], tl.float32)
    for start in range(0, width, DEPTH):
        place = start + tl.arange(0, DEPTH)
        inside = place < width
        one = tl.load(hidden + row[:, None] * width + place[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        other = tl.load(w + label[None, :] * width + place[:, None], mask=real[None, :] & inside[:, None], other=0.0)
        products = tl.dot(one, other, products, input_precision=PRECISION)
    return products


@triton.jit  # type: ignore[untyped-decorator]
def _rank(  # type: ignore[no-untyped-def]
    hidden, w, b, targets, read, ahead, losses, positions, classes, width, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    POSITIONS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A block of positions. The target's own output is computed as the others are, with the same rounding."""
    at = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    there = at < positions
    there = there & (tl.load(read + at, mask=there, other=0) != 0)
    target = tl.load(targets + at, mask=there, other=0)
    valid = (target >= 0) & (target < classes)
    goal = tl.where(valid, target, 0).to(tl.int32)
    row = at.to(tl.int64)
    last = tl.where(tl.max(there.to(tl.int32), 0) > 0, classes, 0)
    reached = tl.where(last > 0, width, 0)
    own = _products(hidden, w, row, there, goal, there, reached, POSITIONS, POSITIONS, DEPTH, PRECISION)
    same = tl.arange(0, POSITIONS)[:, None] == tl.arange(0, POSITIONS)[None, :]
    own = tl.sum(tl.where(same, own, 0.0), 1)
    if BIAS:
        own += tl.load(b + goal, mask=there, other=0.0)
    top = tl.full([POSITIONS], float("-inf"), tl.float32)
    total = tl.zeros([POSITIONS], tl.float32)
    before = tl.zeros([POSITIONS], tl.int32)
    for start in range(0, last, CLASSES):
        label = start + tl.arange(0, CLASSES)
        real = label < classes
        output = _products(hidden, w, row, there, label, real, width, POSITIONS, CLASSES, DEPTH, PRECISION)
        if BIAS:
            output += tl.load(b + label, mask=real, other=0.0)[None, :]
        lower = (output < own[:, None]) | ((output == own[:, None]) & (label[None, :] >= goal[:, None]))
        counts = real[None, :] & (label[None, :] != goal[:, None]) & (lower == 0)
        before += tl.sum(counts.to(tl.int32), 1)
        output = tl.where(real[None, :], output, float("-inf"))
        higher = tl.maximum(top, tl.max(output, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(output - higher[:, None]), 1)
        top = higher
    before = tl.where(valid & (own == own), before, classes)
    tl.store(ahead + at, before, mask=there)
    tl.store(losses + at, top + tl.log(total) - own, mask=there)
