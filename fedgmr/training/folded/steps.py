"""The optimiser's step for all clients at once, in one pass over their weights.

Weights, gradients and what the optimiser remembers are matrices of the same shape, a client in each row. A step moves
the weights whose level is within the client's limit, and what is remembered of them; the others keep their bits,
whatever their gradients hold. The formulas are those of `fedgmr/training/optimizers.py`.
"""

import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.folded.launches import optional
from fedgmr.training.stacked.convolution import cdiv

_SIZE = 1024


def sgd(
    weights: Tensor, gradients: Tensor, levels: Tensor, limits: Tensor, rates: Tensor, velocities: Tensor | None,
    momentum: float, decay: float,
) -> None:  # fmt: skip
    """A step of SGD: v = momentum · v + g + decay · w, then w - rate · v.

    Levels are uint8, `limits` int32: the highest level of each client that moves. Velocities go with momentum alone.
    """
    clients, row = weights.shape
    _sgd[(cdiv(row, _SIZE), clients)](
        weights, gradients, levels, limits, rates, optional(velocities, weights)[0], row, momentum, decay,
        MOMENTUM=momentum > 0.0, DECAY=decay > 0.0, SIZE=_SIZE,
    )  # fmt: skip


def adam(
    weights: Tensor, gradients: Tensor, levels: Tensor, limits: Tensor, rates: Tensor, means: Tensor, squares: Tensor,
    taken: int, beta1: float, beta2: float, eps: float,
) -> None:  # fmt: skip
    """A step of Adam, the `taken`-th of a task; the first one reads no means of gradients and squares, and sets all."""
    clients, row = weights.shape
    _adam[(cdiv(row, _SIZE), clients)](
        weights, gradients, levels, limits, rates, means, squares, row, 1.0 - beta1, beta2, 1.0 - beta2, eps,
        1.0 - beta1**taken, (1.0 - beta2**taken) ** 0.5, FIRST=taken == 1, SIZE=_SIZE,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _places(weights, gradients, levels, limits, row, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program's client and its places, which of them are in the row, which move, their weights and gradients."""
    client = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < row
    at = client * row + place
    taken = tl.load(levels + at, mask=inside, other=255).to(tl.int32) <= tl.load(limits + client)
    weight = tl.load(weights + at, mask=inside, other=0.0)
    return client, at, inside, taken, weight, tl.load(gradients + at, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _sgd(  # type: ignore[no-untyped-def]
    weights, gradients, levels, limits, rates, velocities, row, momentum, decay,
    MOMENTUM: tl.constexpr, DECAY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """A block of a client's weights; only the row's end masks a store, so that numbers are stored by fours."""
    client, at, inside, taken, weight, step = _places(weights, gradients, levels, limits, row, SIZE)
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
    client, at, inside, taken, weight, gradient = _places(weights, gradients, levels, limits, row, SIZE)
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
