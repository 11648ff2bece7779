"""Triton kernels of the graphed executor: bias, ReLU and maximum behind a convolution in one pass, and thresholds.

Activations lie channels last, as rows of channels; everything is computed in float32. Sums over rows are made block
by block and added up in a fixed order, so the same inputs give the same bits. Triton comes with PyTorch's CUDA
builds; without it nothing here is used. Read next: `fused.py`, which calls them.
"""

import triton
import triton.language as tl

_NAN = tl.constexpr(tl.PropagateNan.ALL)  # what is no number stays none, as in PyTorch
# The code of a 2 x 2 field: 0..3 where its largest input was, 4 where the ReLU made it zero.


@triton.jit  # type: ignore[untyped-decorator]
def relu_pool_forward(  # type: ignore[no-untyped-def]
    inputs, bias, outputs, codes, rows, width, channels,
    POOL: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Outputs [rows, channels] = relu(inputs + bias), with POOL the 2 x 2 maximum of it; width is the outputs'."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (row[:, None] < rows) & (channel[None, :] < channels)
    to = row[:, None].to(tl.int64) * channels + channel[None, :]
    added = tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)
    if POOL:
        column, line = row % width, row // width  # line counts through all images
        corner = (line * 4 * width + column * 2).to(tl.int64)  # the inputs have 2 x 2 as many rows
        at = corner[:, None] * channels + channel[None, :]
        best = tl.load(inputs + at, mask=inside, other=0.0).to(tl.float32)
        code = tl.zeros([ROWS, CHANNELS], tl.int32)
        for place in tl.static_range(1, 4):
            step = ((place // 2) * 2 * width + place % 2) * channels
            value = tl.load(inputs + at + step, mask=inside, other=0.0).to(tl.float32)
            code = tl.where(value > best, place, code)
            best = tl.maximum(value, best, propagate_nan=_NAN)
        best += added[None, :]
        tl.store(codes + to, tl.where(best > 0.0, code, 4).to(tl.uint8), mask=inside)
    else:
        best = tl.load(inputs + to, mask=inside, other=0.0).to(tl.float32) + added[None, :]
    tl.store(outputs + to, tl.maximum(best, 0.0, propagate_nan=_NAN), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def relu_pool_backward(  # type: ignore[no-untyped-def]
    slopes, kept, into, sums, rows, width, channels,
    POOL: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Into = slopes where an output was above zero, with POOL where its field's largest input was; zero elsewhere.

    `kept` are the outputs, with POOL the codes. Sums [blocks, channels] of the slopes are for the bias.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (row[:, None] < rows) & (channel[None, :] < channels)
    to = row[:, None].to(tl.int64) * channels + channel[None, :]
    slope = tl.load(slopes + to, mask=inside, other=0.0).to(tl.float32)
    if POOL:
        code = tl.load(kept + to, mask=inside, other=4).to(tl.int32)
        slope = tl.where(code < 4, slope, 0.0)
        column, line = row % width, row // width
        corner = (line * 4 * width + column * 2).to(tl.int64)
        at = corner[:, None] * channels + channel[None, :]
        for place in tl.static_range(4):
            step = ((place // 2) * 2 * width + place % 2) * channels
            tl.store(into + at + step, tl.where(code == place, slope, 0.0), mask=inside)
    else:
        slope = tl.where(tl.load(kept + to, mask=inside, other=0.0).to(tl.float32) > 0.0, slope, 0.0)
        tl.store(into + to, slope, mask=inside)
    tl.store(sums + tl.program_id(0) * channels + channel, tl.sum(slope, 0), mask=channel < channels)


@triton.jit  # type: ignore[untyped-decorator]
def hide(weights, whole, theta, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whole = weights; weights = 0 where smaller than theta."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    weight = tl.load(weights + at, mask=inside, other=0.0)
    tl.store(whole + at, weight, mask=inside)
    tl.store(weights + at, tl.where(tl.abs(weight) >= tl.load(theta), weight, 0.0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def step_kept(  # type: ignore[no-untyped-def]
    weights, whole, gradients, rates, theta, count, DERIVATIVE: tl.constexpr, SIZE: tl.constexpr
):
    """Weights = whole - rates · factor · gradients, with the factor of `fedgmr/training/thresholds.py`."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    weight = tl.load(whole + at, mask=inside, other=0.0)
    size, least = tl.abs(weight), tl.load(theta)
    factor = tl.full([SIZE], 1.0, tl.float32)
    if DERIVATIVE:
        both = tl.maximum(size + least, 1.17549435e-38)
        factor = 1.0 + 2.0 * (least / both) * (size / both)
    slope = tl.load(gradients + at, mask=inside, other=0.0) * tl.where(size >= least, factor, 0.0)
    tl.store(weights + at, weight - tl.load(rates + at, mask=inside, other=0.0) * slope, mask=inside)
