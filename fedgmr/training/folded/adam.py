"""A step of Adam for all clients at once, in one pass over their weights; SGD's is `reduce_step` of the chains.

Weights, gradients and moments are matrices of the same shape, a client in each row. A step moves the weights whose
level is within the client's limit, and their moments; the others keep their bits, whatever their gradients hold. The
formulas are those of `fedgmr/training/optimizers.py`.

With thresholds (FIARSE) what has fallen below its client's is put by, and zero takes its place in products. Unlike with
plain SGD it goes on moving, because its moments are not zero, and may come back.
"""

import triton
import triton.language as tl

from fedgmr.training.optimizers import Adam
from fedgmr.training.stacked.row_kernels import NOWHERE


def numbers(adam: Adam, taken: int) -> tuple[float, ...]:
    """What the `taken`-th step of a task is told: shares of the news and of the past, corrections."""
    beta1, beta2 = adam.beta1, adam.beta2
    return 1.0 - beta1, beta2, 1.0 - beta2, adam.eps, 1.0 - beta1**taken, (1.0 - beta2**taken) ** 0.5


@triton.jit  # type: ignore[untyped-decorator]
def step(  # type: ignore[no-untyped-def]
    weights, gradients, levels, fallen, limits, thetas, rates, means, squares, row, news, beta2, square_news, eps,
    mean_share, root_share, FIRST: tl.constexpr, MODE: tl.constexpr, DERIVATIVE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """A block of a client's weights; the FIRST step of a task reads no moments and sets all.

    Only the row's end masks a store, so that numbers are stored by fours.
    """
    client = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < row
    at = client * row + place
    level = tl.load(levels + at, mask=inside, other=NOWHERE).to(tl.int32)
    weight = tl.load(weights + at, mask=inside, other=0.0)
    gradient = tl.load(gradients + at, mask=inside, other=0.0)
    if MODE == "threshold":
        taken = level < NOWHERE
        theta = tl.where(level > 0, tl.load(thetas + client), 0.0)
        weight += tl.load(fallen + at, mask=inside, other=0.0)  # one of the two is zero
        if DERIVATIVE:
            share = theta / tl.maximum(tl.abs(weight) + theta, 1.17549435e-38)
            gradient = gradient * (1.0 + 2.0 * share * (1.0 - share))  # 1 - share: the magnitude's
        gradient = tl.where(tl.abs(weight) >= theta, gradient, 0.0)
    else:
        taken = level <= tl.load(limits + client)
    if FIRST:
        mean = tl.zeros([SIZE], tl.float32)
        square = tl.zeros([SIZE], tl.float32)
    else:
        mean = tl.load(means + at, mask=inside, other=0.0)
        square = tl.load(squares + at, mask=inside, other=0.0)
    new_mean = mean + news * (gradient - mean)
    new_square = square * beta2 + square_news * gradient * gradient
    tl.store(means + at, tl.where(taken, new_mean, mean), mask=inside)
    tl.store(squares + at, tl.where(taken, new_square, square), mask=inside)
    root = tl.sqrt(new_square) / root_share + eps
    moved = tl.where(taken, weight - tl.load(rates + client) / mean_share * (new_mean / root), weight)
    if MODE == "threshold":
        falls = tl.abs(moved) < theta
        tl.store(fallen + at, tl.where(falls, moved, 0.0), mask=inside)
        moved = tl.where(falls, 0.0, moved)
    tl.store(weights + at, moved, mask=inside)
