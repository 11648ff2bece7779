"""The Triton kernels of the last linear layer and the cross-entropy behind it; `head.py` says what they do together.

Before a product `look`, `scale` and `pack` bring class weights and hidden values into the range of half precision,
`arrange` puts positions with weight first. `walk` and `combine` are the forward pass, `weigh` is the backward one;
`take_loss` is for logits that were written. The last grid dimension is the client.
"""

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)
_PIECE = tl.constexpr(32)  # hidden values: the smallest that matrix units are kept busy with
_HEIGHT = tl.constexpr(13)  # the largest number of half precision is below 2 ^ 16; scaled ones are below 2 ^ 14
_TO_ONE = tl.constexpr(2.0**-14)  # from there
_LIFT = tl.constexpr(15.0)  # of powers, which are 1 at most
_SURE = tl.constexpr(2.0**15)  # what 1 is then
SHARES = tl.constexpr(64)  # of a matrix whose largest number is looked for


@triton.jit
def _power_below(largest):  # type: ignore[no-untyped-def]
    """The power of two that brings a number below 2 ^ 14 and not below 2 ^ 13; 1 for zero."""
    exponent = ((largest.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    return tl.where(largest > 0.0, tl.exp2(-(tl.maximum(exponent, -100) - _HEIGHT).to(tl.float32)), 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def look(  # type: ignore[no-untyped-def]
    matrices, weights, parts, stride, weights_row, numbers, share, width, SIZE: tl.constexpr, TOLD: tl.constexpr
):
    """The largest distance from zero in a share of a matrix."""
    client = tl.program_id(1).to(tl.int64)
    matrices += client * stride
    begin = tl.program_id(0) * share
    end = tl.minimum(begin + share, numbers)
    largest = tl.zeros([SIZE], tl.float32)
    for start in range(begin, end, SIZE):
        at = start + tl.arange(0, SIZE)
        counts = at < end
        if TOLD:
            counts = counts & (tl.load(weights + client * weights_row + at // width, mask=counts, other=0.0) != 0.0)
        largest = tl.maximum(largest, tl.abs(tl.load(matrices + at, mask=counts, other=0.0)))
    tl.store(parts + client * SHARES + tl.program_id(0), tl.max(largest, 0))


@triton.jit
def _factor(parts, factors, client):  # type: ignore[no-untyped-def]
    """A client's power of two; one of its programs writes it down."""
    factor = _power_below(tl.max(tl.load(parts + client * SHARES + tl.arange(0, SHARES)), 0))
    tl.store(factors + client, factor, mask=tl.program_id(0) == 0)
    return factor


@triton.jit  # type: ignore[untyped-decorator]
def scale(matrices, parts, factors, scaled, stride, numbers, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of a matrix by its power of two."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(matrices + client * stride + at, mask=at < numbers, other=0.0) * _factor(parts, factors, client)
    tl.store(scaled + client * numbers + at, value.to(scaled.dtype.element_ty), mask=at < numbers)


@triton.jit  # type: ignore[untyped-decorator]
def pack(  # type: ignore[no-untyped-def]
    hidden, parts, factors, packed, order, counts, positions, width, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Hidden values in the order of `order`, by their power of two if HALF, with zeros for positions without weight."""
    client = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    told = place < tl.load(counts + client)
    position = tl.load(order + client * positions + place, mask=told, other=0)
    column = tl.arange(0, WIDTH)
    inside = (place < positions)[:, None] & (column < width)[None, :]
    known = told[:, None] & (column < width)[None, :]
    hidden += client * positions * width
    value = tl.load(hidden + position[:, None] * width + column[None, :], mask=known, other=0.0)
    if HALF:
        value *= _factor(parts, factors, client)
    to = packed + client * positions * width + place[:, None] * width + column[None, :]
    tl.store(to, value.to(packed.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(matrix, row, column, real, width, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """[row, column] of a matrix whose rows have `width` numbers."""
    mask = real[:, None] if EVEN else real[:, None] & (column < width)[None, :]
    return tl.load(matrix + row[:, None] * width + column[None, :], mask=mask, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _write(matrix, row, column, value, real, width, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    mask = real[:, None] if EVEN else real[:, None] & (column < width)[None, :]
    tl.store(matrix + row[:, None] * width + column[None, :], value, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def arrange(weights, order, counts, factors, positions, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A client's positions with weight, then the others; how many have one, and the power of two for the weights."""
    client = tl.program_id(0).to(tl.int64)
    weights += client * positions
    order += client * positions
    counted = tl.zeros([SIZE], tl.int32)
    largest = tl.zeros([SIZE], tl.float32)
    for start in range(0, positions, SIZE):
        position = start + tl.arange(0, SIZE)
        weight = tl.load(weights + position, mask=position < positions, other=0.0)
        counted += (weight != 0.0).to(tl.int32)
        largest = tl.maximum(largest, tl.abs(weight))
    count = tl.sum(counted, 0)
    tl.store(counts + client, count)
    tl.store(factors + client, _power_below(tl.max(largest, 0)) * _TO_ONE)
    met = count * 0
    for start in range(0, positions, SIZE):
        position = start + tl.arange(0, SIZE)
        there = position < positions
        told = tl.load(weights + position, mask=there, other=0.0) != 0.0
        before = met + tl.cumsum(told.to(tl.int32), 0) - told.to(tl.int32)
        tl.store(order + tl.where(told, before, count + position - before), position, mask=there)
        met += tl.sum(told.to(tl.int32), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _product(one, other, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.dot(one, other) if HALF else tl.dot(one, other, input_precision="ieee")


@triton.jit
def _added(product, sums, factor):  # type: ignore[no-untyped-def]
    """Product + sums · factor. A product that is added up by the matrix units goes on while the next one begins.

    Then the compiler makes all of them wait for each other, so this is an operation that it does not put into them.
    """
    return tl.fma(sums, tl.zeros(sums.shape, tl.float32) + factor, product)


@triton.jit
def _piece(given, client, stride):  # type: ignore[no-untyped-def]
    """Where a client's hidden values begin, and whether a piece of 32 has all of them."""
    begin = tl.load(given + client) // 16 * 16
    return begin, tl.load(given + stride + client) <= begin + _PIECE


@triton.jit
def _unit(factors, client, apart):  # type: ignore[no-untyped-def]
    """A logit of 1, in powers of two, is so much in a product."""
    return _LOG2E / (tl.load(factors + client) * tl.load(factors + apart + client))


@triton.jit  # type: ignore[untyped-decorator]
def walk(  # type: ignore[no-untyped-def]
    hidden, w, b, absent, counts, factors, tops, totals, pulls, given, range_stride, w_row, b_row, apart, positions,
    classes, width, share, splits, POSITIONS: tl.constexpr, CLASSES: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr, MASKED: tl.constexpr, NARROW: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Of a block of positions over a share of the classes: highest logit, sum of powers, class weights by power.

    Logits are counted in powers of two. Results lie in the order of `order`, as the hidden values do.
    """
    client = tl.program_id(2).to(tl.int64)
    w += client * w_row
    b += client * b_row
    absent += client * classes
    hidden += client * positions * width
    unit = _unit(factors, client, apart)
    count = tl.load(counts + client)
    place = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    first = tl.program_id(1) * share
    last = tl.where(tl.program_id(0) * POSITIONS < count, tl.minimum(classes, first + share), 0)
    to = (client * splits + tl.program_id(1)) * positions + place
    if NARROW:
        begin, small = _piece(given, client, range_stride)
    else:
        begin = 0
        small = tl.constexpr(False)
    if small:
        _walk_columns(
            hidden, w, b, absent, tops, totals, pulls, place, place < count, to, first, last, classes, width, begin,
            unit, POSITIONS, CLASSES, _PIECE, 0, False, BIAS, MASKED, HALF,
        )  # fmt: skip
    else:
        _walk_columns(
            hidden, w, b, absent, tops, totals, pulls, place, place < count, to, first, last, classes, width, 0, unit,
            POSITIONS, CLASSES, FIRST, SECOND, EVEN, BIAS, MASKED, HALF,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _walk_columns(  # type: ignore[no-untyped-def]
    hidden, w, b, absent, tops, totals, pulls, place, real, to, first, last, classes, width, begin, unit,
    POSITIONS: tl.constexpr, CLASSES: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, MASKED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The same with the hidden values from `begin` on."""
    lift = _LIFT if HALF else 0.0
    one = begin + tl.arange(0, FIRST)
    hidden_1 = _tile(hidden, place, one, real, width, EVEN)
    pull_1 = tl.zeros([POSITIONS, FIRST], tl.float32)
    if SECOND > 0:
        two = begin + FIRST + tl.arange(0, SECOND)
        hidden_2 = _tile(hidden, place, two, real, width, EVEN)
        pull_2 = tl.zeros([POSITIONS, SECOND], tl.float32)
    top = tl.full([POSITIONS], float("-inf"), tl.float32)
    total = tl.zeros([POSITIONS], tl.float32)
    for start in range(first, last, CLASSES):
        label = start + tl.arange(0, CLASSES)
        there = label < classes
        weight_1 = _tile(w, label, one, there, width, EVEN)
        logit = _product(hidden_1, tl.trans(weight_1), HALF)
        if SECOND > 0:
            weight_2 = _tile(w, label, two, there, width, EVEN)
            logit += _product(hidden_2, tl.trans(weight_2), HALF)
        logit *= unit
        if BIAS:
            logit += _LOG2E * tl.load(b + label, mask=there, other=0.0)[None, :]
        if MASKED:
            lost = tl.load(absent + label, mask=there, other=0) != 0
            logit = tl.where(lost[None, :], 0.0, logit)
        logit = tl.where(there[None, :], logit, float("-inf"))
        higher = tl.maximum(top, tl.max(logit, 1))
        power = tl.exp2((logit - higher[:, None]) + lift)
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(power, 1)
        top = higher
        if MASKED:
            power = tl.where(lost[None, :], 0.0, power)
        power = power.to(weight_1.dtype)
        pull_1 = _added(_product(power, weight_1, HALF), pull_1, shrink[:, None])
        if SECOND > 0:
            pull_2 = _added(_product(power, weight_2, HALF), pull_2, shrink[:, None])
    tl.store(tops + to, top, mask=real)
    tl.store(totals + to, total, mask=real)
    _write(pulls, to, one, pull_1, real, width, EVEN)
    if SECOND > 0:
        _write(pulls, to, two, pull_2, real, width, EVEN)


@triton.jit  # type: ignore[untyped-decorator]
def combine(  # type: ignore[no-untyped-def]
    hidden, w, b, targets, weights, order, counts, factors, tops, totals, pulls, heights, losses, shares, goals,
    dhidden, given, range_stride, w_row, b_row, apart, positions, classes, width, splits, POSITIONS: tl.constexpr,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, NARROW: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """From the shares of all classes, in their order: log-sum-exp in powers of two, loss, gradient of `hidden`.

    What the backward pass reads is written in the order of `order`, with zeros for positions without weight.
    """
    client = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    there = place < positions
    told = place < tl.load(counts + client)
    at = client * positions + place
    own_at = client * positions + tl.load(order + at, mask=there, other=0)
    column = tl.arange(0, WIDTH)
    inside = there[:, None] & (column < width)[None, :]
    known = told[:, None] & (column < width)[None, :]
    pulled = known
    if NARROW:  # the others were not written
        begin, small = _piece(given, client, range_stride)
        low, high = tl.where(small, begin, 0), tl.where(small, begin + _PIECE, width)
        pulled = known & ((column >= low) & (column < high))[None, :]
    tops += client * splits * positions + place
    totals += client * splits * positions + place
    pulls += client * splits * positions * width + place[:, None] * width + column[None, :]
    top = tl.full([POSITIONS], float("-inf"), tl.float32)
    for split in range(0, splits):
        top = tl.maximum(top, tl.load(tops + split * positions, mask=told, other=0.0))
    total = tl.zeros([POSITIONS], tl.float32)
    pull = tl.zeros([POSITIONS, WIDTH], tl.float32)
    for split in range(0, splits):
        part = tl.exp2(tl.load(tops + split * positions, mask=told, other=0.0) - top)
        total += tl.load(totals + split * positions, mask=told, other=1.0) * part
        pull += tl.load(pulls + split * positions * width, mask=pulled, other=0.0) * part[:, None]
    height = top + (tl.log2(total) - (_LIFT if HALF else 0.0))
    weight = tl.load(weights + own_at, mask=told, other=0.0)
    target = tl.load(targets + own_at, mask=told, other=-1)
    valid = told & (target >= 0) & (target < classes)
    target = tl.where(valid, target, 0)
    value = tl.load(hidden + own_at[:, None] * width + column[None, :], mask=known, other=0.0)
    own = tl.load(w + client * w_row + target[:, None] * width + column[None, :], mask=known, other=0.0)
    logit = tl.sum(value * own, 1)
    if BIAS:
        logit += tl.load(b + client * b_row + target, mask=told, other=0.0)
    tl.store(heights + at, height, mask=there)
    tl.store(losses + at, weight * (height / _LOG2E - logit), mask=there)
    tl.store(shares + at, weight * tl.load(factors + 2 * apart + client), mask=there)
    tl.store(goals + at, target.to(tl.int32), mask=there)
    scale = total * tl.load(factors + apart + client)
    slope = weight[:, None] * (pull / scale[:, None] - own)
    tl.store(dhidden + own_at[:, None] * width + column[None, :], slope, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def weigh(  # type: ignore[no-untyped-def]
    hidden, w, b, absent, targets, weights, heights, counts, factors, dw, db, given, range_stride, w_row, b_row, dw_row,
    db_row, apart, positions, classes, width, POSITIONS: tl.constexpr, CLASSES: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr, MASKED: tl.constexpr, NARROW: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights of a block of classes, over all positions with weight; they come first."""
    client = tl.program_id(1).to(tl.int64)
    w += client * w_row
    b += client * b_row
    absent += client * classes
    dw += client * dw_row
    db += client * db_row
    hidden += client * positions * width
    targets += client * positions
    weights += client * positions
    heights += client * positions
    count = tl.load(counts + client)
    if NARROW:
        begin, small = _piece(given, client, range_stride)
    else:
        begin = 0
        small = tl.constexpr(False)
    if small:
        _weigh_columns(
            hidden, w, b, absent, targets, weights, heights, count, factors, dw, db, client, apart, classes, width,
            begin, POSITIONS, CLASSES, _PIECE, 0, False, BIAS, MASKED, HALF,
        )  # fmt: skip
    else:
        _weigh_columns(
            hidden, w, b, absent, targets, weights, heights, count, factors, dw, db, client, apart, classes, width, 0,
            POSITIONS, CLASSES, FIRST, SECOND, EVEN, BIAS, MASKED, HALF,
        )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _weigh_columns(  # type: ignore[no-untyped-def]
    hidden, w, b, absent, targets, weights, heights, count, factors, dw, db, client, apart, classes, width, begin,
    POSITIONS: tl.constexpr, CLASSES: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, MASKED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The same with the hidden values from `begin` on."""
    lift = _LIFT if HALF else 0.0
    sure = _SURE if HALF else 1.0
    unit = _unit(factors, client, apart)
    label = tl.program_id(0) * CLASSES + tl.arange(0, CLASSES)
    there = label < classes
    one = begin + tl.arange(0, FIRST)
    weight_1 = _tile(w, label, one, there, width, EVEN)
    sums_1 = tl.zeros([CLASSES, FIRST], tl.float32)
    if SECOND > 0:
        two = begin + FIRST + tl.arange(0, SECOND)
        weight_2 = _tile(w, label, two, there, width, EVEN)
        sums_2 = tl.zeros([CLASSES, SECOND], tl.float32)
    if BIAS:
        bias = _LOG2E * tl.load(b + label, mask=there, other=0.0)
        bias_sums = tl.zeros([CLASSES], tl.float32)
    if MASKED:
        lost = tl.load(absent + label, mask=there, other=0) != 0
    for start in range(0, count, POSITIONS):
        position = start + tl.arange(0, POSITIONS)
        real = position < count
        value_1 = _tile(hidden, position, one, real, width, EVEN)
        logit = _product(weight_1, tl.trans(value_1), HALF)
        if SECOND > 0:
            value_2 = _tile(hidden, position, two, real, width, EVEN)
            logit += _product(weight_2, tl.trans(value_2), HALF)
        logit *= unit
        if BIAS:
            logit += bias[:, None]
        height = tl.load(heights + position, mask=real, other=float("inf"))
        share = tl.load(weights + position, mask=real, other=0.0)
        target = tl.load(targets + position, mask=real, other=-1)
        likely = tl.minimum(tl.exp2((logit - height[None, :]) + lift), sure)  # of large logits rounding is much
        slope = tl.where(label[:, None] == target[None, :], likely - sure, likely) * share[None, :]
        if MASKED:
            slope = tl.where(lost[:, None], 0.0, slope)
        if BIAS:
            bias_sums += tl.sum(slope, 1)
        slope = slope.to(value_1.dtype)
        sums_1 = _added(_product(slope, value_1, HALF), sums_1, 1.0)
        if SECOND > 0:
            sums_2 = _added(_product(slope, value_2, HALF), sums_2, 1.0)
    back = 1.0 / (sure * tl.load(factors + 2 * apart + client))
    scale = back / tl.load(factors + client)
    _write(dw, label, one, sums_1 * scale, there, width, EVEN)
    if SECOND > 0:
        _write(dw, label, two, sums_2 * scale, there, width, EVEN)
    if BIAS:
        tl.store(db + label, bias_sums * back, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def take_loss(slopes, targets, weights, losses, positions, classes, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The loss of a position; its gradient takes the place of the logits."""
    at = tl.program_id(1).to(tl.int64) * positions + tl.program_id(0)
    slopes += at * classes
    top = tl.full([SIZE], float("-inf"), tl.float32)
    for start in range(0, classes, SIZE):
        label = start + tl.arange(0, SIZE)
        top = tl.maximum(top, tl.load(slopes + label, mask=label < classes, other=float("-inf")))
    top = tl.max(top, 0)
    totals = tl.zeros([SIZE], tl.float32)
    chosen = tl.zeros([SIZE], tl.float32)
    target = tl.load(targets + at)
    for start in range(0, classes, SIZE):
        label = start + tl.arange(0, SIZE)
        logit = tl.load(slopes + label, mask=label < classes, other=float("-inf"))
        totals += tl.exp(logit - top)
        chosen += tl.where(label == target, logit, 0.0)
    total = tl.sum(totals, 0)
    weight = tl.load(weights + at)
    loss = weight * (top + tl.log(total) - tl.sum(chosen, 0))
    tl.store(losses + at, tl.where(weight != 0.0, loss, 0.0))
    for start in range(0, classes, SIZE):
        label = start + tl.arange(0, SIZE)
        logit = tl.load(slopes + label, mask=label < classes, other=0.0)
        slope = weight * (tl.exp(logit - top) / total - tl.where(label == target, 1.0, 0.0))
        tl.store(slopes + label, tl.where(weight != 0.0, slope, 0.0), mask=label < classes)
