"""Triton kernels for linear layers of many clients at once, and for the loss behind the last: as `conv_kernels.py`."""

import triton
import triton.language as tl

from fedgmr.training.stacked.conv_kernels import hand_back
from fedgmr.training.stacked.range_kernels import meets, span
from fedgmr.training.stacked.row_kernels import NOWHERE, descend
from fedgmr.training.stacked.table import Column

_ABSENT = tl.constexpr(int(Column.ABSENT))


@triton.jit  # type: ignore[untyped-decorator]
def linear_product(  # type: ignore[no-untyped-def]
    x, w, b, y, deep, wide, range_stride, x_row, w_row, b_row, y_row, rows, columns, depth, deeper, further,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr,
    RELU: tl.constexpr, NARROW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X · w + bias, and ReLU if wished; in w the sum's next number is `deeper` away, the next column `further`.

    `deep` and `wide` are the ranges of the sum and of the columns.
    """
    client = tl.program_id(2).to(tl.int64)
    x += client * x_row
    y += client * y_row
    w += client * w_row
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real, there = row < rows, column < columns
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    first, blocks = span(deep, client, range_stride, depth, DEPTH, NARROW)
    useful = meets(wide, client, range_stride, tl.program_id(1), COLUMNS, NARROW)
    for number in range(0, blocks * useful):
        part = (first + number) * DEPTH + tl.arange(0, DEPTH)
        inside, known = real[:, None], there[None, :]
        if not EVEN:
            inside = inside & (part < depth)[None, :]
            known = known & (part < depth)[:, None]
        value = tl.load(x + row[:, None] * depth + part[None, :], mask=inside, other=0.0)
        weight = tl.load(w + part[:, None] * deeper + column[None, :] * further, mask=known, other=0.0)
        sums = tl.dot(value, weight, sums, input_precision=PRECISION)
    if BIAS:
        sums += tl.load(b + client * b_row + column, mask=there, other=0.0)[None, :]
    if RELU:
        sums = tl.maximum(sums, 0.0)
    tl.store(y + row[:, None] * columns + column[None, :], sums, mask=real[:, None] & there[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def linear_step(  # type: ignore[no-untyped-def]
    slopes, inputs, codes, before, alive, weights, levels, fallen, velocities, limits, thetas, rates, size, weight_at,
    bias_at, slope_stride, input_stride, before_stride, samples, inputs_count, outputs_count, width, channels,
    SAMPLES: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, FIRST: tl.constexpr, POOLED: tl.constexpr,
    MODE: tl.constexpr, DERIVATIVE: tl.constexpr, MOMENTUM: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The step, and unless FIRST the gradient of the inputs, carried back through the previous ReLU and maximum."""
    client = tl.program_id(2).to(tl.int64)
    slopes += client * slope_stride
    inputs += client * input_stride
    weights += client * size
    levels += client * size
    fallen += client * size
    velocities += client * size
    limit = tl.load(limits + client)
    theta = tl.load(thetas + client)
    rate = tl.load(rates + client)
    sample = tl.arange(0, SAMPLES)
    column = tl.program_id(0) * INPUTS + tl.arange(0, INPUTS)
    real, given = sample < samples, column < inputs_count
    inside = real[:, None] & given[None, :]
    value = tl.load(inputs + sample[:, None] * inputs_count + column[None, :], mask=inside, other=0.0)
    sums = tl.zeros([SAMPLES, INPUTS], tl.float32)
    for start in range(0, outputs_count, OUTPUTS):
        output = start + tl.arange(0, OUTPUTS)
        there = output < outputs_count
        slope = tl.load(
            slopes + sample[:, None] * outputs_count + output[None, :], mask=real[:, None] & there[None, :], other=0.0
        )
        to = weight_at + output[:, None] * inputs_count + column[None, :]
        known = there[:, None] & given[None, :]
        weight = tl.load(weights + to, mask=known, other=0.0)
        level = tl.load(levels + to, mask=known, other=NOWHERE)
        if not FIRST:
            read = tl.load(alive + client * size + to, mask=known, other=0.0) if MODE == "level" else weight
            sums = tl.dot(slope, read, sums, input_precision=PRECISION)
        gradient = tl.dot(tl.trans(slope), value, input_precision=PRECISION)
        descend(
            weights, levels, fallen, velocities, to, known, weight, level, gradient, rate, limit, theta,
            MODE, DERIVATIVE, MOMENTUM, DECAY, False,
        )  # fmt: skip
        if tl.program_id(0) == 0:
            to_bias = bias_at + output
            bias = tl.load(weights + to_bias, mask=there, other=0.0)
            its_level = tl.load(levels + to_bias, mask=there, other=NOWHERE)
            bias_sum = tl.sum(slope, 0)
            descend(
                weights, levels, fallen, velocities, to_bias, there, bias, its_level, bias_sum, rate, limit, theta,
                MODE, DERIVATIVE, MOMENTUM, DECAY, False,
            )  # fmt: skip
    if not FIRST:
        before += client * before_stride
        codes += client * input_stride
        if POOLED:
            pixel = sample[:, None] * (inputs_count // channels) + (column // channels)[None, :]
            channel = (column % channels)[None, :]
            hand_back(sums, inputs, codes, before, pixel, channel, inside, width, channels, True, True)
        else:
            to = before + sample[:, None] * inputs_count + column[None, :]
            tl.store(to, tl.where(value > 0.0, sums, 0.0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def loss_slopes(  # type: ignore[no-untyped-def]
    outputs, targets, table, slopes, losses, stride, target_stride, samples, classes, share,
    COLUMNS: tl.constexpr, SAMPLES: tl.constexpr, CLASSES: tl.constexpr, BINARY: tl.constexpr, ABSENT: tl.constexpr,
):  # fmt: skip
    """The loss's gradient, and `share` of the loss added to the client's; outputs of absent classes count as zero."""
    client = tl.program_id(0).to(tl.int64)
    sample, label = tl.arange(0, SAMPLES), tl.arange(0, CLASSES)
    real, known = sample < samples, label < classes
    inside = real[:, None] & known[None, :]
    at = client * stride + sample[:, None] * classes + label[None, :]
    output = tl.load(outputs + at, mask=inside, other=0.0)
    present = known
    if ABSENT:
        absent = tl.load(table + client * COLUMNS + _ABSENT).to(tl.pointer_type(tl.uint8))
        present = known & (tl.load(absent + label, mask=known, other=1) == 0)
        output = tl.where(present[None, :], output, 0.0)
    target = tl.load(targets + client * target_stride + sample, mask=real, other=-1)
    hit = tl.where(target[:, None] == label[None, :], 1.0, 0.0)
    if BINARY:
        small = tl.exp(-tl.abs(output))
        each = tl.maximum(output, 0.0) - output * hit + tl.log(1.0 + small)
        likely = tl.where(output >= 0.0, 1.0, small) / (1.0 + small)
        slope = (likely - hit) / (samples * classes)
        loss = tl.sum(tl.sum(tl.where(inside, each, 0.0), 1), 0) / (samples * classes)
    else:
        output = tl.where(known[None, :], output, float("-inf"))
        highest = tl.max(output, 1)
        power = tl.exp(output - highest[:, None])
        total = tl.sum(power, 1)
        slope = (power / total[:, None] - hit) / samples
        chosen = tl.sum(tl.where((hit > 0.0) & inside, output, 0.0), 1)
        each_sample = highest + tl.log(total) - chosen
        loss = tl.sum(tl.where(real, each_sample, 0.0), 0) / samples
    slope = tl.where(present[None, :], slope, 0.0)
    tl.store(slopes + at, slope, mask=inside)
    tl.store(losses + client, tl.load(losses + client) + loss * share)
