"""Triton kernels for convolutions of many clients at once: the last grid dimension is the client.

Each client's weights are one row of a matrix, activations are [client, sample, height, width, channel]. A program
works for one client alone and tiles never depend on how many there are, so a client's bits do not depend on its
company. A layer's kernel does all that can be done while its numbers are at hand: bias, ReLU and 2 x 2 maximum behind
a convolution, their derivatives behind an input gradient, the step of SGD behind a weight gradient.

Convolutions also do without what stands around them in a chain: without bias or ReLU, with a stride, with gradients
handed back as they are. Where a layer has few tiles and a long sum, SPLITS programs add up a part of it each, and
`fedgmr/training/folded/launches.py` adds those in their order. Read next: `convolution.py`.
"""

import triton
import triton.language as tl

from fedgmr.training.stacked.range_kernels import meets, span
from fedgmr.training.stacked.row_kernels import NOWHERE, descend

# Codes of a 2 x 2 maximum: 0..3 for its place, 4 if ReLU made it zero.
_ZEROED = tl.constexpr(4)


@triton.jit  # type: ignore[untyped-decorator]
def _part(split, count, SPLITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The begin and end of a part of `count` blocks; all of them if there is one part."""
    if SPLITS == 1:
        return 0, count
    else:
        share = tl.cdiv(count, SPLITS)
        return split * share, tl.minimum((split + 1) * share, count)


@triton.jit  # type: ignore[untyped-decorator]
def conv_forward(  # type: ignore[no-untyped-def]
    inputs, weights, given, wanted, range_stride, outputs, codes, size, weight_at, bias_at,
    input_stride, output_stride, rows, height: tl.constexpr, width: tl.constexpr, inputs_count: tl.constexpr,
    out_height: tl.constexpr, out_width: tl.constexpr, outputs_count: tl.constexpr, padding: tl.constexpr,
    KERNEL: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    FLAT: tl.constexpr, EVEN: tl.constexpr, POOL: tl.constexpr, NARROW: tl.constexpr,
    STRIDE: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Relu(convolution + bias), and of each 2 x 2 field the maximum with its code if POOL.

    `given` and `wanted` are the ranges of the input and output channels; outside they are zero. Of SPLITS parts, which
    lie one behind the other in `outputs`, the first has the bias.
    """
    client = (tl.program_id(2) // SPLITS).to(tl.int64)
    split = tl.program_id(2) % SPLITS
    inputs += client * input_stride
    outputs += tl.program_id(2).to(tl.int64) * output_stride
    weights += client * size
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    if POOL:  # the four of a field are neighbours
        field = row // 4
        corner = row % 4
        line = field // (out_width // 2)
        x = (field % (out_width // 2)) * 2 + corner % 2
        y = (line % (out_height // 2)) * 2 + corner // 2
        sample = line // (out_height // 2)
    else:
        x = row % out_width
        y = (row // out_width) % out_height
        sample = row // (out_width * out_height)
    real = row < rows
    there = output < outputs_count
    depth = KERNEL * KERNEL * inputs_count
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    useful = meets(wanted, client, range_stride, tl.program_id(1), OUTPUTS, NARROW)
    if FLAT:
        for start in range(0, depth * useful, INPUTS):
            part = start + tl.arange(0, INPUTS)
            tap = part // inputs_count
            channel = part - tap * inputs_count
            in_y = y[:, None] * STRIDE + (tap // KERNEL)[None, :] - padding
            in_x = x[:, None] * STRIDE + (tap % KERNEL)[None, :] - padding
            inside = (
                real[:, None] & (part < depth)[None, :] & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
            )
            at = ((sample[:, None] * height + in_y) * width + in_x) * inputs_count + channel[None, :]
            value = tl.load(inputs + at, mask=inside, other=0.0)
            to = weight_at + output[None, :] * depth + part[:, None]
            known = there[None, :] & (part < depth)[:, None]
            weight = tl.load(weights + to, mask=known, other=0.0)
            sums = tl.dot(value, weight, sums, input_precision=PRECISION)
    else:
        first, blocks = span(given, client, range_stride, inputs_count, INPUTS, NARROW)
        begin, end = _part(split, KERNEL * KERNEL * blocks * useful, SPLITS)
        for number in range(begin, end):
            tap = number // blocks
            channel = (first + number - tap * blocks) * INPUTS + tl.arange(0, INPUTS)
            in_y = y * STRIDE + tap // KERNEL - padding
            in_x = x * STRIDE + tap % KERNEL - padding
            seen = real & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
            at = ((sample * height + in_y) * width + in_x) * inputs_count
            if EVEN:
                inside = seen[:, None]
                known = there[None, :]
            else:
                inside = seen[:, None] & (channel < inputs_count)[None, :]
                known = there[None, :] & (channel < inputs_count)[:, None]
            value = tl.load(inputs + at[:, None] + channel[None, :], mask=inside, other=0.0)
            to = weight_at + output[None, :] * depth + tap * inputs_count + channel[:, None]
            weight = tl.load(weights + to, mask=known, other=0.0)
            sums = tl.dot(value, weight, sums, input_precision=PRECISION)
    if BIAS:
        bias = tl.load(weights + bias_at + output, mask=output < tl.where(split == 0, outputs_count, 0), other=0.0)
    else:
        bias = tl.zeros([OUTPUTS], tl.float32)
    if POOL:
        four = tl.reshape(sums, [ROWS // 4, 4, OUTPUTS])
        best, code = tl.max(four, 1, return_indices=True)
        best = best + bias[None, :]
        code = tl.where(best > 0.0, code, _ZEROED)
        field = tl.program_id(0) * (ROWS // 4) + tl.arange(0, ROWS // 4)
        at = field[:, None] * outputs_count + output[None, :]
        inside = (field < rows // 4)[:, None] & there[None, :]
        tl.store(outputs + at, tl.maximum(best, 0.0), mask=inside)
        tl.store(codes + client * output_stride + at, code.to(tl.uint8), mask=inside)
    else:
        at = row[:, None] * outputs_count + output[None, :]
        sums += bias[None, :]
        if RELU:
            sums = tl.maximum(sums, 0.0)
        tl.store(outputs + at, sums, mask=real[:, None] & there[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def hand_back(  # type: ignore[no-untyped-def]
    sums, inputs, codes, slopes, pixel, channel, inside, width, channels, POOLED: tl.constexpr, RELU: tl.constexpr
):
    """Write the gradient of a layer's inputs as that of the outputs before the ReLU (and the maximum) before it."""
    at = pixel * channels + channel
    if not RELU:
        tl.store(slopes + at, sums, mask=inside)
    elif POOLED:
        code = tl.load(codes + at, mask=inside, other=_ZEROED).to(tl.int32)
        corner = ((pixel // width) * 4 * width + (pixel % width) * 2) * channels + channel
        for place in tl.static_range(4):
            to = corner + ((place // 2) * 2 * width + place % 2) * channels
            tl.store(slopes + to, tl.where(code == place, sums, 0.0), mask=inside)
    else:
        alive = tl.load(inputs + at, mask=inside, other=0.0) > 0.0
        tl.store(slopes + at, tl.where(alive, sums, 0.0), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def conv_backward(  # type: ignore[no-untyped-def]
    slopes, weights, given, wanted, range_stride, inputs, codes, before, size, weight_at,
    slope_stride, input_stride, before_stride, rows, height: tl.constexpr, width: tl.constexpr,
    inputs_count: tl.constexpr, out_height: tl.constexpr, out_width: tl.constexpr, outputs_count: tl.constexpr,
    padding: tl.constexpr, KERNEL: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    EVEN: tl.constexpr, POOLED: tl.constexpr, NARROW: tl.constexpr, STRIDE: tl.constexpr, RELU: tl.constexpr,
    TURNED: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a convolution's inputs, carried back through the previous ReLU and maximum if RELU.

    Weights lie in the order output, height, width, input, or if TURNED input, height, width, output.
    With a stride the pixels of a program have one place among STRIDE x STRIDE, which the same taps meet, and `rows`
    counts the pixels of a place, as many as the first place has. SPLITS parts lie one behind the other in `before`.
    """
    client = (tl.program_id(2) // SPLITS).to(tl.int64)
    split = tl.program_id(2) % SPLITS
    slopes += client * slope_stride
    weights += client * size
    channel = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
    if STRIDE == 1:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        x = row % width
        y = (row // width) % height
        sample = row // (width * height)
        real = row < rows
        last_x = x + padding  # the output that the first tap meets
        last_y = y + padding
        first_tap = 0
        across = KERNEL
        taps = KERNEL * KERNEL
    else:
        tiles = tl.cdiv(rows, ROWS)
        place = tl.program_id(0) // tiles
        pixel = (tl.program_id(0) - place * tiles) * ROWS + tl.arange(0, ROWS)
        columns = (width + STRIDE - 1) // STRIDE
        lines = (height + STRIDE - 1) // STRIDE
        x = (pixel % columns) * STRIDE + place % STRIDE
        y = ((pixel // columns) % lines) * STRIDE + place // STRIDE
        sample = pixel // (columns * lines)
        real = (pixel < rows) & (x < width) & (y < height)
        row = (sample * height + y) * width + x
        first_x = (place % STRIDE + padding) % STRIDE
        first_y = (place // STRIDE + padding) % STRIDE
        last_x = (x + padding - first_x) // STRIDE
        last_y = (y + padding - first_y) // STRIDE
        first_tap = first_y * KERNEL + first_x
        across = (KERNEL - first_x + STRIDE - 1) // STRIDE
        taps = across * ((KERNEL - first_y + STRIDE - 1) // STRIDE)
    there = channel < inputs_count
    sums = tl.zeros([ROWS, INPUTS], tl.float32)
    useful = meets(given, client, range_stride, tl.program_id(1), INPUTS, NARROW)
    first, blocks = span(wanted, client, range_stride, outputs_count, OUTPUTS, NARROW)
    begin, end = _part(split, taps * blocks * useful, SPLITS)
    for number in range(begin, end):
        turn = number // blocks
        output = (first + number - turn * blocks) * OUTPUTS + tl.arange(0, OUTPUTS)
        tap = turn
        if STRIDE > 1:
            tap = first_tap + (turn // across * KERNEL + turn % across) * STRIDE
        out_y = last_y - turn // across
        out_x = last_x - turn % across
        seen = real & (out_y >= 0) & (out_y < out_height) & (out_x >= 0) & (out_x < out_width)
        at = ((sample * out_height + out_y) * out_width + out_x) * outputs_count
        if EVEN:
            inside = seen[:, None]
            known = there[None, :]
        else:
            inside = seen[:, None] & (output < outputs_count)[None, :]
            known = there[None, :] & (output < outputs_count)[:, None]
        slope = tl.load(slopes + at[:, None] + output[None, :], mask=inside, other=0.0)
        if TURNED:
            to = weight_at + (channel[None, :] * KERNEL * KERNEL + tap) * outputs_count + output[:, None]
        else:
            to = weight_at + (output[:, None] * KERNEL * KERNEL + tap) * inputs_count + channel[None, :]
        weight = tl.load(weights + to, mask=known, other=0.0)
        sums = tl.dot(slope, weight, sums, input_precision=PRECISION)
    inside = real[:, None] & there[None, :]
    hand_back(
        sums, inputs + client * input_stride, codes + client * input_stride,
        before + tl.program_id(2).to(tl.int64) * before_stride, row[:, None], channel[None, :], inside, width,
        inputs_count, POOLED, RELU,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def conv_step(  # type: ignore[no-untyped-def]
    inputs, slopes, weights, levels, fallen, velocities, limits, thetas, rates, given, wanted, range_stride, parts,
    size, weight_at, bias_at, input_stride, slope_stride, rows, height: tl.constexpr, width: tl.constexpr,
    inputs_count: tl.constexpr, out_height: tl.constexpr, out_width: tl.constexpr, outputs_count: tl.constexpr,
    padding: tl.constexpr, share, splits, span, KERNEL: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    ROWS: tl.constexpr, FLAT: tl.constexpr, SPLIT: tl.constexpr, MODE: tl.constexpr, DERIVATIVE: tl.constexpr,
    MOMENTUM: tl.constexpr, DECAY: tl.constexpr, NARROW: tl.constexpr, STRIDE: tl.constexpr, BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A convolution's step; if SPLIT, the gradient over `share` rows for `reduce_step` or another sum."""
    client = (tl.program_id(2) // splits).to(tl.int64)
    split = tl.program_id(2) % splits
    inputs += client * input_stride
    slopes += client * slope_stride
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    there = output < outputs_count
    depth = KERNEL * KERNEL * inputs_count
    useful = meets(wanted, client, range_stride, tl.program_id(0), OUTPUTS, NARROW)
    if FLAT:
        part = tl.program_id(1) * INPUTS + tl.arange(0, INPUTS)
        taps = part // inputs_count
        channel = part - taps * inputs_count
        known = part < depth
        both = useful
    else:
        blocks = tl.cdiv(inputs_count, INPUTS)
        tap = tl.program_id(1) // blocks
        channel = (tl.program_id(1) - tap * blocks) * INPUTS + tl.arange(0, INPUTS)
        part = tap * inputs_count + channel
        known = channel < inputs_count
        both = useful * meets(given, client, range_stride, tl.program_id(1) - tap * blocks, INPUTS, NARROW)
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    last = tl.minimum(rows, (split + 1) * share) * useful
    for start in range(split * share, last * both, ROWS):
        row = start + tl.arange(0, ROWS)
        real = row < last
        x = row % out_width
        y = (row // out_width) % out_height
        sample = row // (out_width * out_height)
        slope = tl.load(
            slopes + row[None, :] * outputs_count + output[:, None], mask=real[None, :] & there[:, None], other=0.0
        )
        if FLAT:
            in_y = y[:, None] * STRIDE + (taps // KERNEL)[None, :] - padding
            in_x = x[:, None] * STRIDE + (taps % KERNEL)[None, :] - padding
            inside = real[:, None] & known[None, :] & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
            at = ((sample[:, None] * height + in_y) * width + in_x) * inputs_count + channel[None, :]
        else:
            in_y = y * STRIDE + tap // KERNEL - padding
            in_x = x * STRIDE + tap % KERNEL - padding
            seen = real & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
            inside = seen[:, None] & known[None, :]
            at = (((sample * height + in_y) * width + in_x) * inputs_count)[:, None] + channel[None, :]
        value = tl.load(inputs + at, mask=inside, other=0.0)
        sums = tl.dot(slope, value, sums, input_precision=PRECISION)
    to = output[:, None] * depth + part[None, :]
    inside = there[:, None] & known[None, :]
    bias_sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    if BIAS:
        once = tl.program_id(1) == 0
        if once:
            for start in range(split * share, last, ROWS):
                row = start + tl.arange(0, ROWS)
                known_slope = (row < last)[:, None] & there[None, :]
                from_slope = row[:, None] * outputs_count + output[None, :]
                bias_sums += tl.load(slopes + from_slope, mask=known_slope, other=0.0)
    bias_sum = tl.sum(bias_sums, 0)
    mine = output < tl.where(tl.program_id(1) == 0, outputs_count, 0)
    if SPLIT:
        parts += (client * splits + split) * span
        tl.store(parts + to, sums, mask=inside)
        if BIAS:
            tl.store(parts + (bias_at - weight_at) + output, bias_sum, mask=mine)
    else:
        weights += client * size
        levels += client * size
        fallen += client * size
        velocities += client * size
        limit = tl.load(limits + client)
        theta = tl.load(thetas + client)
        rate = tl.load(rates + client)
        to += weight_at
        weight = tl.load(weights + to, mask=inside, other=0.0)
        level = tl.load(levels + to, mask=inside, other=NOWHERE)
        descend(
            weights, levels, fallen, velocities, to, inside, weight, level, sums, rate, limit, theta,
            MODE, DERIVATIVE, MOMENTUM, DECAY, False,
        )  # fmt: skip
        to_bias = bias_at + output
        bias = tl.load(weights + to_bias, mask=mine, other=0.0)
        its_level = tl.load(levels + to_bias, mask=mine, other=NOWHERE)
        descend(
            weights, levels, fallen, velocities, to_bias, mine, bias, its_level, bias_sum, rate, limit, theta,
            MODE, DERIVATIVE, MOMENTUM, DECAY, False,
        )  # fmt: skip
