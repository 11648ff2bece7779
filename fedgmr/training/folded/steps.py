"""The optimiser's step for all clients at once, in one pass over their weights.

Weights, gradients and what the optimiser remembers are matrices of the same shape, a client in each row. A step moves
the weights whose level is within the client's limit, and what is remembered of them; the others keep their bits,
whatever their gradients hold. The formulas are those of `fedgmr/training/optimizers.py`.
"""

import triton
import triton.language as tl
from torch import Tensor

_SIZE = 1024


def sgd(
    weights: Tensor, gradients: Tensor, levels: Tensor, limits: Tensor, rates: Tensor, velocities: Tensor | None,
    momentum: float, decay: float,
) -> None:  # fmt: skip
    """A step of SGD: v = momentum · v + g + decay · w, then w - rate · v.

    Args:
        weights: [clients, row], contiguous, like all matrices here.
        gradients: [clients, row].
        levels: [clients, row], uint8.
        limits: the highest level that moves, [clients], int32.
        rates: [clients].
        velocities: [clients, row]; needed with momentum alone.
        momentum: share of a step's direction in the next one's.
        decay: so much of a weight is added to its gradient.
    """
    assert not momentum or velocities is not None
    clients, row = weights.shape
    _sgd[(triton.cdiv(row, _SIZE), clients)](
        weights, gradients, levels, limits, rates, weights if velocities is None else velocities, row, momentum, decay,
        MOMENTUM=momentum > 0.0, DECAY=decay > 0.0, SIZE=_SIZE,
    )  # fmt: skip


def adam(
    weights: Tensor, gradients: Tensor, levels: Tensor, limits: Tensor, rates: Tensor, means: Tensor, squares: Tensor,
    taken: int, beta1: float, beta2: float, eps: float,
) -> None:  # fmt: skip
    """A step of Adam, the `taken`-th of a task; the first one reads no moments and sets all of them.

    Args:
        weights: [clients, row], contiguous, like all matrices here.
        gradients: [clients, row].
        levels: [clients, row], uint8.
        limits: the highest level that moves, [clients], int32.
        rates: [clients].
        means: of gradients, [clients, row].
        squares: means of squared gradients, [clients, row].
        taken: the number of steps with this one, from 1 on.
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of squared gradients.
        eps: added to the root of the mean of squares.
    """
    assert taken >= 1
    clients, row = weights.shape
    _adam[(triton.cdiv(row, _SIZE), clients)](
        weights, gradients, levels, limits, rates, means, squares, row, 1.0 - beta1, beta2, 1.0 - beta2, eps,
        1.0 - beta1**taken, (1.0 - beta2**taken) ** 0.5, FIRST=taken == 1, SIZE=_SIZE,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _sgd(  # type: ignore[no-untyped-def]
    weights, gradients, levels, limits, rates, velocities, row, momentum, decay,
    MOMENTUM: tl.constexpr, DECAY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """A block of a client's weights; only the row's end masks a store, so that numbers are stored by fours."""
    client = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < row
    at = client * row + place
    taken = tl.load(levels + at, mask=inside, other=255).to(tl.int32) <= tl.load(limits + client)
    weight = tl.load(weights + at, mask=inside, other=0.0)
    step = tl.load(gradients + at, mask=inside, other=0.0)
    if DECAY:
        step = step + decay * weight
    if MOMENTUM:
        velocity = tl.load(velocities + at, mask=inside, other=0.0)
        step = step + momentum * velocity
        tl.store(velocities + at, tl.where(taken, step, velocity), mask=inside)
    moved = weight - tl.load(rates + client) * step
    tl.store(weights + at, tl.where(taken, moved, weight), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _adam(  # type: ignore[no-untyped-def]
    weights, gradients, levels, limits, rates, means, squares, row, news, beta2, square_news, eps, mean_share,
    root_share, FIRST: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The same for Adam."""
    client = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < row
    at = client * row + place
    taken = tl.load(levels + at, mask=inside, other=255).to(tl.int32) <= tl.load(limits + client)
    weight = tl.load(weights + at, mask=inside, other=0.0)
    gradient = tl.load(gradients + at, mask=inside, other=0.0)
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
    moved = weight - tl.load(rates + client) / mean_share * (new_mean / root)
    tl.store(weights + at, tl.where(taken, moved, weight), mask=inside)
