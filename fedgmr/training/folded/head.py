"""The last linear layer and the weighted cross-entropy behind it, for many clients at once.

A net that predicts one of many words spends most of its time here. Its logits are never written: a program keeps a
block of positions, walks over a share of the classes and carries the highest logit, the sum of the powers and the sum
of class weights by power, which is what the gradient of the hidden values needs. So the forward pass ends with that
gradient too, and the backward pass is one product for the weights, for which logits are computed once more. Where
classes are few or hidden values are wide, logits are written, and the layer is one of `linear.py`. Positions without
weight, such as padding, are put behind the others, and no program walks for them.

Where TF32 is allowed, products are of half precision, which keeps as many digits at twice the rate, and needs no
transposed copies. Its range is narrow, so what goes in is scaled by powers of two: hidden values and weights by their
largest, powers by 2 ^ 15. The target's logit is added up without any of this. Widths are cut in pieces of 64 + 32, so
that 96 is not 128. A client whose hidden values lie in a piece of 32 (`ranges`) computes with no others. Read next:
`head_kernels.py`; `linear.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from fedgmr.training.folded import head_kernels, linear
from fedgmr.training.folded.launches import add_parts, optional
from fedgmr.training.stacked.convolution import EXACT, Ranges, Tiles, cdiv, everything

LEAST_CLASSES = 2048  # from here on logits are not written
_WIDEST = 128  # hidden values that a program keeps
_ENOUGH = 128  # programs a client should keep busy in the forward pass
_SHARES = head_kernels.SHARES.value
_SIZE = 1024
# Rows are positions, columns are classes.
_FORWARD = Tiles(rows=64, columns=128, warps=4, stages=3)
_BACKWARD = Tiles(rows=128, columns=64, warps=4, stages=3)


def forward(
    hidden: Tensor, w: Tensor, b: Tensor | None, targets: Tensor, weights: Tensor, precision: str,
    ranges: Ranges | None = None, absent: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """The loss of each client, the sum of weight · (log-sum-exp of the logits - the target's logit); and what to keep.

    Hidden values are [clients, positions, width], w is [clients, classes, width]. Targets [clients, positions] are
    classes; where their weight is zero, anything. Logits of classes that are `absent` (bool [clients, classes]) are 0.
    """
    clients, positions, width = hidden.shape
    classes, losses, sums = w.shape[1], torch.empty_like(weights), weights.new_empty(clients)
    if width > _WIDEST or classes < LEAST_CLASSES:
        slopes = linear.forward(hidden, w, b, precision, ranges)
        if absent is not None:
            slopes.masked_fill_(absent[:, None], 0.0)
        head_kernels.take_loss[(positions, clients)](
            slopes, targets, weights, losses, positions, classes, SIZE=min(4096, triton.next_power_of_2(classes))
        )
        if absent is not None:
            slopes.masked_fill_(absent[:, None], 0.0)
        add_parts(losses[:, :, None], sums)
        return sums, (slopes,)
    tiles, ranges = _FORWARD if precision == "tf32" else EXACT, ranges or everything(hidden)
    (biases, bias_row), factors = optional(b, hidden), hidden.new_ones((3, cdiv(clients, 16) * 16))
    order, counts = targets.new_empty(targets.shape, dtype=torch.int32), targets.new_empty(clients, dtype=torch.int32)
    head_kernels.arrange[(clients,)](weights, order, counts, factors[2], positions, SIZE=_SIZE)
    half, apart = precision == "tf32", factors.stride(0)
    packed, given = _operands(hidden, w, weights, order, counts, factors, half)
    splits = min(cdiv(_ENOUGH, cdiv(positions, tiles.rows)), cdiv(classes, 512))
    share = cdiv(cdiv(classes, splits), tiles.columns) * tiles.columns
    splits = cdiv(classes, share)
    tops, totals = (hidden.new_empty((clients, splits, positions)) for _ in range(2))
    pulls = hidden.new_empty((clients, splits, positions, width))
    head_kernels.walk[(cdiv(positions, tiles.rows), splits, clients)](
        packed, given, biases, hidden if absent is None else absent, counts, factors, tops, totals, pulls, ranges.given,
        ranges.stride, given.stride(0), bias_row, apart, positions, classes, width, share, splits,
        BIAS=b is not None, MASKED=absent is not None, NARROW=ranges.narrow, **_blocks(width, tiles, precision),
    )  # fmt: skip
    heights, shares, goals = torch.empty_like(weights), torch.empty_like(weights), torch.empty_like(order)
    dhidden = torch.empty_like(hidden)
    head_kernels.combine[(cdiv(positions, 16), clients)](
        hidden, w, biases, targets, weights, order, counts, factors, tops, totals, pulls, heights, losses, shares,
        goals, dhidden, ranges.given, ranges.stride, w.stride(0), bias_row, apart, positions, classes, width, splits,
        POSITIONS=16, WIDTH=triton.next_power_of_2(width), BIAS=b is not None, NARROW=ranges.narrow,
        HALF=half,
    )  # fmt: skip
    add_parts(losses[:, :, None], sums)
    lost = [] if absent is None else [absent]
    return sums, (dhidden, packed, given, factors, heights, shares, goals, counts, *lost)


def input_gradients(kept: Sequence[Tensor], w: Tensor, precision: str, ranges: Ranges | None = None) -> Tensor:
    """The gradient of `hidden`, for a gradient of one of every loss; `kept` is what `forward` handed over."""
    return linear.input_gradients(kept[0], w, precision, ranges) if len(kept) == 1 else kept[0]


def weight_gradients(
    kept: Sequence[Tensor], hidden: Tensor, w: Tensor, b: Tensor | None, dw: Tensor, db: Tensor | None, precision: str,
    ranges: Ranges | None = None,
) -> None:  # fmt: skip
    """Write the gradients of `w` and `b` to `dw` and `db`, for a gradient of one of every loss.

    Those of weights that a client does not have may stay unwritten.
    """
    if len(kept) == 1:
        linear.weight_gradients(kept[0], hidden, dw, db, precision, ranges)
        return
    ranges = ranges or everything(hidden)
    _, packed, given, factors, heights, shares, goals, counts, *absent = kept
    (clients, positions, width), classes = hidden.shape, w.shape[1]
    tiles, apart = _BACKWARD if precision == "tf32" else EXACT, factors.stride(0)
    (biases, bias_row), (dbiases, dbias_row) = optional(b, hidden), optional(db, dw)
    head_kernels.weigh[(cdiv(classes, tiles.columns), clients)](
        packed, given, biases, absent[0] if absent else packed, goals, shares, heights, counts, factors, dw, dbiases,
        ranges.given, ranges.stride, given.stride(0), bias_row, dw.stride(0), dbias_row, apart, positions, classes,
        width, BIAS=b is not None, MASKED=len(absent) > 0, NARROW=ranges.narrow, **_blocks(width, tiles, precision),
    )  # fmt: skip


def _blocks(width: int, tiles: Tiles, precision: str) -> dict[str, Any]:
    """Block sizes; the width is cut into powers of two, of which the second may be none."""
    first, second = (64, 32) if 64 < width <= 96 else (max(32, triton.next_power_of_2(width)), 0)
    sizes = {"POSITIONS": tiles.rows, "CLASSES": tiles.columns, "FIRST": first, "SECOND": second}
    # Without fusion a logit is rounded before the highest is taken from it, so that equal ones stay equal.
    fixed = {"HALF": precision == "tf32", "enable_fp_fusion": False}
    return {**sizes, "EVEN": first + second == width, **fixed, **tiles.launch}


def _operands(
    hidden: Tensor, w: Tensor, weights: Tensor, order: Tensor, counts: Tensor, factors: Tensor, half: bool
) -> tuple[Tensor, Tensor]:
    """Hidden values in the order of `order`, and class weights, as products take them; writes the factors of both."""
    (clients, positions, width), numbers = hidden.shape, w[0].numel()
    packed = hidden.new_empty(hidden.shape, dtype=torch.float16 if half else hidden.dtype)
    head_kernels.pack[(cdiv(positions, 16), clients)](
        hidden, _largest(hidden, weights) if half else hidden, factors[0], packed, order, counts, positions, width,
        ROWS=16, WIDTH=triton.next_power_of_2(width), HALF=half,
    )  # fmt: skip
    if not half:
        return packed, w
    scaled = w.new_empty(w.shape, dtype=torch.float16)
    head_kernels.scale[(cdiv(numbers, _SIZE), clients)](
        w, _largest(w), factors[1], scaled, w.stride(0), numbers, SIZE=_SIZE
    )
    return packed, scaled


def _largest(matrices: Tensor, weights: Tensor | None = None) -> Tensor:
    """Of each client's matrix the largest distance from zero, by shares; without the rows whose weight is zero."""
    clients, numbers = len(matrices), matrices[0].numel()
    parts = matrices.new_empty((clients, _SHARES))
    share = cdiv(cdiv(numbers, _SHARES), _SIZE) * _SIZE
    told, told_row = optional(weights, matrices)
    head_kernels.look[(_SHARES, clients)](
        matrices, told, parts, matrices.stride(0), told_row, numbers, share, matrices.shape[-1], SIZE=_SIZE,
        TOLD=weights is not None,
    )  # fmt: skip
    return parts
