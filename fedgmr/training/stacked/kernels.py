"""Triton kernels that train many clients at once: the last grid dimension is the client.

Each client's weights are one row of a matrix, activations are [client, sample, height, width, channel]. A program
works for one client alone and tiles never depend on how many there are, so a client's bits do not depend on its
company. A layer's kernel does all that can be done while its numbers are at hand: bias, ReLU and 2 x 2 maximum behind
a convolution, their derivatives behind an input gradient, the step of SGD behind a weight gradient, with momentum on a
row of velocities beside the weights.

MODE says which weights take part in a step: "all" of the sub-model, those that have not fallen below the client's
"threshold" (FIARSE; what falls is put by, zero takes its place, and no later step moves it), those whose "level" is
within the step's limit (FjORD; `select` copies them out before the step: an operand that is masked on its way in every
product doubled a round's time). Where sub-models are by width (NARROW), a step's channels lie in a range of a client's
own, and products stop at its ends.

Convolutions also do without what stands around them in a chain: without bias or ReLU, with a stride, with gradients
handed back as they are. Where a layer has few tiles and a long sum, SPLITS programs add up a part of it each, and
`fedgmr/training/folded/launches.py` adds those in their order. Read next: `convolution.py`.
"""

import triton
import triton.language as tl

from fedgmr.training.stacked.table import Column

# Codes of a 2 x 2 maximum: 0..3 for its place, 4 if ReLU made it zero.
_ZEROED = tl.constexpr(4)
_MODEL, _LEVELS, _LEVEL, _ORDER, _COUNT, _VALUES, _ABSENT, _, _MEMORY, _KEPT, _ = (
    tl.constexpr(int(column)) for column in Column
)
NOWHERE = tl.constexpr(255)  # the level of what is in no sub-model of the client's


@triton.jit  # type: ignore[untyped-decorator]
def lay_out(  # type: ignore[no-untyped-def]
    table, order, ranked, weights, levels, velocities, least, size, COLUMNS: tl.constexpr, SIZE: tl.constexpr,
    MODE: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """Each client's sub-model in the stack's order, zeros outside, and the level and velocity of each weight.

    For thresholds, in place of the level whether the weight has one (1, else 0), and the bits of the smallest magnitude
    of those that have; of numbers from zero on, more bits are a larger number.
    """
    client = tl.program_id(1)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    row = table + client * COLUMNS
    model = tl.load(row + _MODEL).to(tl.pointer_type(tl.float32))
    where = tl.load(row + _LEVELS).to(tl.pointer_type(tl.uint8))
    own = tl.load(row + _LEVEL).to(tl.int32)
    coordinate = tl.load(order + at, mask=at < size, other=-1)
    level = tl.load(where + coordinate, mask=coordinate >= 0, other=NOWHERE).to(tl.int32)
    inside = (coordinate >= 0) & (level <= own)
    value = tl.load(model + coordinate, mask=inside, other=0.0)
    to = client.to(tl.int64) * size + at
    tl.store(weights + to, value, mask=at < size)
    if MODE == "threshold":
        level = tl.load(ranked + at, mask=at < size, other=0).to(tl.int32)
        smallest = tl.min(tl.where(inside & (level > 0), tl.abs(value), float("inf")), 0)
        tl.atomic_min(least + client, smallest.to(tl.int32, bitcast=True))
    tl.store(levels + to, tl.where(inside, level, NOWHERE).to(tl.uint8), mask=at < size)
    if MOMENTUM > 0.0:
        memory = tl.load(row + _MEMORY)
        velocity = tl.zeros([SIZE], tl.float32)
        if memory != 0:
            velocity = tl.load(memory.to(tl.pointer_type(tl.float32)) + coordinate, mask=inside, other=0.0)
        tl.store(velocities + to, velocity, mask=at < size)


@triton.jit  # type: ignore[untyped-decorator]
def _handed(table, COLUMNS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program's client, its row, where values that it hands over lie, which there are, and their coordinates."""
    client = tl.program_id(1)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    row = table + client * COLUMNS
    inside = at < tl.load(row + _COUNT)
    order = tl.load(row + _ORDER)
    coordinate = at.to(tl.int64)
    if order != 0:
        coordinate = tl.load(order.to(tl.pointer_type(tl.int64)) + at, mask=inside, other=0)
    return client, row, tl.load(row + _VALUES).to(tl.pointer_type(tl.float32)) + at, inside, coordinate


@triton.jit  # type: ignore[untyped-decorator]
def take_out(  # type: ignore[no-untyped-def]
    table, inverse, weights, fallen, velocities, damaged, size, COLUMNS: tl.constexpr, SIZE: tl.constexpr,
    MODE: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """Each client's values in the order it hands them over, its velocity in natural order; marks who is not finite."""
    client, row, values, inside, coordinate = _handed(table, COLUMNS, SIZE)
    place = client.to(tl.int64) * size + tl.load(inverse + coordinate, mask=inside, other=0)
    value = tl.load(weights + place, mask=inside, other=0.0)
    if MODE == "threshold":
        value += tl.load(fallen + place, mask=inside, other=0.0)
    tl.store(values, value, mask=inside)
    if MOMENTUM > 0.0:
        kept = tl.load(row + _KEPT)
        if kept != 0:
            velocity = tl.load(velocities + place, mask=inside, other=0.0)
            tl.store(kept.to(tl.pointer_type(tl.float32)) + coordinate, velocity, mask=inside)
    broken = tl.max(tl.where(tl.abs(value) < float("inf"), 0, 1), 0)
    if broken > 0:
        tl.store(damaged + client, 1)


@triton.jit  # type: ignore[untyped-decorator]
def bring_back(table, damaged, COLUMNS: tl.constexpr, SIZE: tl.constexpr, MOMENTUM: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a client was given, in place of its values, and no velocity, where its values are damaged."""
    if tl.load(damaged + tl.program_id(1)) > 0:
        _, row, values, inside, coordinate = _handed(table, COLUMNS, SIZE)
        model = tl.load(row + _MODEL).to(tl.pointer_type(tl.float32))
        tl.store(values, tl.load(model + coordinate, mask=inside, other=0.0), mask=inside)
        if MOMENTUM > 0.0:
            kept = tl.load(row + _KEPT)
            if kept != 0:
                nothing = tl.zeros([SIZE], tl.float32)
                tl.store(kept.to(tl.pointer_type(tl.float32)) + coordinate, nothing, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def find_range(  # type: ignore[no-untyped-def]
    levels, limits, first, last, size, weight_at, bias_at, depth, SIZE: tl.constexpr
):
    """The range of a convolution's outputs that have a weight or bias in this step: `first` to before `last`."""
    output = tl.program_id(0)
    client = tl.program_id(1).to(tl.int64)
    levels += client * size
    limit = tl.load(limits + client)
    least = tl.load(levels + bias_at + output).to(tl.int32)
    for start in range(0, depth, SIZE):
        part = start + tl.arange(0, SIZE)
        level = tl.load(levels + weight_at + output * depth + part, mask=part < depth, other=NOWHERE).to(tl.int32)
        least = tl.minimum(least, tl.min(level, 0))
    if least <= limit:
        tl.atomic_min(first + client, output)
        tl.atomic_max(last + client, output + 1)


@triton.jit  # type: ignore[untyped-decorator]
def span(ranges, client, stride, count, SIZE: tl.constexpr, NARROW: tl.constexpr):  # type: ignore[no-untyped-def]
    """First block of channels in a client's range, and how many blocks; all of them unless NARROW."""
    if NARROW:
        first = tl.load(ranges + client) // SIZE
        return first, tl.maximum(tl.cdiv(tl.load(ranges + stride + client), SIZE) - first, 0)
    else:
        return 0, tl.cdiv(count, SIZE)


@triton.jit  # type: ignore[untyped-decorator]
def meets(ranges, client, stride, block, SIZE: tl.constexpr, NARROW: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 where a block of channels has some in the client's range, otherwise 0; 1 unless NARROW."""
    if NARROW:
        low, high = tl.load(ranges + client), tl.load(ranges + stride + client)
        return ((block * SIZE < high) & ((block + 1) * SIZE > low)).to(tl.int32)
    else:
        return 1


@triton.jit  # type: ignore[untyped-decorator]
def _part(split, count, SPLITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The begin and end of a part of `count` blocks; all of them if there is one part."""
    if SPLITS == 1:
        return 0, count
    else:
        share = tl.cdiv(count, SPLITS)
        return split * share, tl.minimum((split + 1) * share, count)


@triton.jit  # type: ignore[untyped-decorator]
def select(weights, levels, limits, alive, size, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weights within each client's limit, zero for the others."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    to = client * size + at
    taken = tl.load(levels + to, mask=at < size, other=NOWHERE).to(tl.int32) <= tl.load(limits + client)
    tl.store(alive + to, tl.load(weights + to, mask=taken, other=0.0), mask=at < size)


@triton.jit  # type: ignore[untyped-decorator]
def _descend(  # type: ignore[no-untyped-def]
    weights, levels, fallen, velocities, at, inside, weight, level, gradient, rate, limit, theta,
    MODE: tl.constexpr, DERIVATIVE: tl.constexpr, MOMENTUM: tl.constexpr, DECAY: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    """A step of SGD for the weights at `at`; FOURS: velocities lie side by side, and are written four at a time."""
    taken = level.to(tl.int32) <= limit
    if MODE == "threshold":
        taken = level < NOWHERE
        theta = tl.where(level > 0, theta, 0.0)
    if DERIVATIVE:
        share = theta / tl.maximum(tl.abs(weight) + theta, 1.17549435e-38)
        gradient = gradient * (1.0 + 2.0 * share * (1.0 - share))  # 1 - share: the magnitude's
    if DECAY > 0.0:
        gradient = gradient + DECAY * weight
    if MOMENTUM > 0.0:
        if FOURS:
            velocity = tl.load(velocities + at, mask=inside, other=0.0)
            gradient = gradient + MOMENTUM * velocity
            tl.store(velocities + at, tl.where(taken, gradient, velocity), mask=inside)
        else:
            gradient = gradient + MOMENTUM * tl.load(velocities + at, mask=inside & taken, other=0.0)
            tl.store(velocities + at, gradient, mask=inside & taken)
    moved = tl.where(taken, weight - rate * gradient, weight)
    if MODE == "threshold":
        falls = inside & taken & (tl.abs(moved) < theta)
        tl.store(fallen + at, moved, mask=falls)
        tl.store(levels + at, tl.full(falls.shape, NOWHERE, tl.uint8), mask=falls)
        moved = tl.where(falls, 0.0, moved)
    tl.store(weights + at, moved, mask=inside)


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
def _hand_back(  # type: ignore[no-untyped-def]
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
    _hand_back(
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
        _descend(
            weights, levels, fallen, velocities, to, inside, weight, level, sums, rate, limit, theta,
            MODE, DERIVATIVE, MOMENTUM, DECAY, False,
        )  # fmt: skip
        to_bias = bias_at + output
        bias = tl.load(weights + to_bias, mask=mine, other=0.0)
        its_level = tl.load(levels + to_bias, mask=mine, other=NOWHERE)
        _descend(
            weights, levels, fallen, velocities, to_bias, mine, bias, its_level, bias_sum, rate, limit, theta,
            MODE, DERIVATIVE, MOMENTUM, DECAY, False,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def reduce_step(  # type: ignore[no-untyped-def]
    parts, weights, levels, fallen, velocities, limits, thetas, rates, size, weight_at, splits, span,
    MODE: tl.constexpr, DERIVATIVE: tl.constexpr, MOMENTUM: tl.constexpr, DECAY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The step of weights whose gradient was added up in parts."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < span
    level = tl.load(levels + client * size + weight_at + at, mask=inside, other=NOWHERE)
    gradient = tl.zeros([SIZE], tl.float32)
    for split in range(0, splits):
        gradient += tl.load(parts + (client * splits + split) * span + at, mask=inside, other=0.0)
    limit = tl.load(limits + client)
    theta = tl.load(thetas + client)
    rate = tl.load(rates + client)
    to = client * size + weight_at + at
    weight = tl.load(weights + to, mask=inside, other=0.0)
    _descend(
        weights, levels, fallen, velocities, to, inside, weight, level, gradient, rate, limit, theta,
        MODE, DERIVATIVE, MOMENTUM, DECAY, True,
    )  # fmt: skip


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
        _descend(
            weights, levels, fallen, velocities, to, known, weight, level, gradient, rate, limit, theta,
            MODE, DERIVATIVE, MOMENTUM, DECAY, False,
        )  # fmt: skip
        if tl.program_id(0) == 0:
            to_bias = bias_at + output
            bias = tl.load(weights + to_bias, mask=there, other=0.0)
            its_level = tl.load(levels + to_bias, mask=there, other=NOWHERE)
            bias_sum = tl.sum(slope, 0)
            _descend(
                weights, levels, fallen, velocities, to_bias, there, bias, its_level, bias_sum, rate, limit, theta,
                MODE, DERIVATIVE, MOMENTUM, DECAY, False,
            )  # fmt: skip
    if not FIRST:
        before += client * before_stride
        codes += client * input_stride
        if POOLED:
            pixel = sample[:, None] * (inputs_count // channels) + (column // channels)[None, :]
            channel = (column % channels)[None, :]
            _hand_back(sums, inputs, codes, before, pixel, channel, inside, width, channels, True, True)
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
