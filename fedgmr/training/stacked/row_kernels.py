"""Triton kernels for rows of weights: laid out, shown to a step, moved by SGD, taken out; a program has one client.

MODE says which weights take part in a step: "all" of the sub-model, those that have not fallen below the client's
"threshold" (FIARSE; what falls is put by, zero takes its place, and no later step moves it), those whose "level" is
within the step's limit (FjORD; `select` copies them out before the step: an operand that is masked on its way in every
product doubled a round's time). With momentum a row of velocities lies beside the weights. Read next: `rows.py`.
"""

import triton
import triton.language as tl

from fedgmr.training.stacked.table import Column

_MODEL, _LEVELS, _LEVEL, _ORDER, _COUNT, _VALUES, _, _, _MEMORY, _KEPT, _ = (
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
def select(weights, levels, limits, alive, size, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weights within each client's limit, zero for the others."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    to = client * size + at
    taken = tl.load(levels + to, mask=at < size, other=NOWHERE).to(tl.int32) <= tl.load(limits + client)
    tl.store(alive + to, tl.load(weights + to, mask=taken, other=0.0), mask=at < size)


@triton.jit  # type: ignore[untyped-decorator]
def descend(  # type: ignore[no-untyped-def]
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
    descend(
        weights, levels, fallen, velocities, to, inside, weight, level, gradient, rate, limit, theta,
        MODE, DERIVATIVE, MOMENTUM, DECAY, True,
    )  # fmt: skip
