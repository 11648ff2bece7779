"""Batch norm of many clients, each with its own statistics, with the sum and the ReLU that may follow it.

Activations are [client, row, channel]; a row is a pixel of a sample. A first kernel adds up shares of the rows, a
second one combines them in their order and goes through the rows again; few rows are left to the second one alone.
"""

import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.folded.launches import optional
from fedgmr.training.stacked.convolution import cdiv, power

_ALONE = 512  # rows up to which there are no shares
_MOST_SHARES = 64
_ROWS = 64


def _shared(x: Tensor) -> tuple[tuple[int, int, int], Tensor, tuple[int, int], dict[str, int]]:
    """How rows are shared out: the grid, room for two numbers per share, a share's rows and the shares, block sizes.

    There are 0 shares where rows are few. Shares are read at once, so their power of two is a block size.
    """
    clients, rows, channels = x.shape
    if rows <= _ALONE:  # narrow, so that there are enough programs
        tile = min(256, power(rows))
        sizes = {"SPLITS": 0, "ROWS": tile, "COLUMNS": 16, "num_warps": 8 if tile == 256 else 4}
        return (cdiv(channels, 16), 1, clients), x, (rows, 0), sizes
    share, wide = cdiv(cdiv(rows, _MOST_SHARES), _ROWS) * _ROWS, min(64, power(channels))
    splits = cdiv(rows, share)
    sizes = {"SPLITS": power(splits), "ROWS": _ROWS, "COLUMNS": wide, "num_warps": 8 if wide > 32 else 4}
    grid = (cdiv(channels, wide), splits, clients)
    return grid, x.new_empty((clients, splits, 2, channels)), (share, splits), sizes


def forward(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running: tuple[Tensor, Tensor] | None, momentum: float,
    eps: float | Tensor, residual: Tensor | None, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The outputs, and the mean and the reciprocal deviation [C, K] of x [C, R, K]; running statistics move in place.

    Outputs are normalised, scaled by gamma and moved by beta [C, K], have the residual added, then ReLU. `eps` is a
    number, or one of each client.
    """
    clients, rows, channels = x.shape
    y, mean, rstd = x.new_empty(x.shape), x.new_empty((clients, channels)), x.new_empty((clients, channels))
    grid, parts, shares, sizes = _shared(x)
    if shares[1]:
        _add_moments[grid](x, parts, rows, channels, *shares, **sizes)
    (scale, stride), (shift, _) = optional(gamma, x), optional(beta, x)
    (means, means_stride), (variances, _) = (optional(one, x) for one in running or (None, None))
    _normalise[grid](
        x, parts, scale, shift, means, variances, optional(residual, x)[0], *_own_eps(eps, x), y, mean, rstd, stride,
        means_stride, rows, channels, *shares, momentum, gamma is not None, running is not None, residual is not None,
        relu, isinstance(eps, Tensor), **sizes,
    )  # fmt: skip
    return y, mean, rstd


def _own_eps(eps: float | Tensor, other: Tensor) -> tuple[float, Tensor]:
    return (0.0, eps) if isinstance(eps, Tensor) else (eps, other)


def backward(
    dy: Tensor, x: Tensor, y: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor | None, dgamma: Tensor | None,
    dbeta: Tensor | None, relu: bool, residual: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The gradients of x and, if there was one, of the residual; those of gamma and beta go to dgamma and dbeta."""
    _, rows, channels = x.shape
    dx, keep, slopes = x.new_empty(x.shape), relu and residual, dy
    kept = x.new_empty(x.shape) if keep else dy
    grid, parts, shares, sizes = _shared(x)
    if shares[1]:
        _add_slopes[grid](dy, x, y, kept, mean, rstd, parts, rows, channels, *shares, relu, keep, **sizes)
        slopes = kept
    masked = relu and slopes is dy  # otherwise it has been done
    (scale, stride), (dscale, dstride), (dshift, _) = (optional(one, x) for one in (gamma, dgamma, dbeta))
    _carry_back[grid](
        slopes, x, y, kept, mean, rstd, scale, parts, dscale, dshift, dx, stride, dstride, rows, channels, *shares,
        gamma is not None, masked, keep and not shares[1], **sizes,
    )  # fmt: skip
    return dx, kept if residual else None


@triton.jit  # type: ignore[untyped-decorator]
def _place(rows, channels, share, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program's client, its channels and which of them exist, its first row and the one behind its last."""
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(1) * share
    return tl.program_id(2).to(tl.int64), channel, channel < channels, begin, tl.minimum(begin + share, rows)


@triton.jit
def _leave(parts, client, channel, known, channels, splits, one, other):  # type: ignore[no-untyped-def]
    """Write the two numbers of a share."""
    parts += (client * splits + tl.program_id(1)) * 2 * channels
    tl.store(parts + channel, one, mask=known)
    tl.store(parts + channels + channel, other, mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def _left(parts, client, channel, known, channels, splits, SPLITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two numbers of every share."""
    split = tl.arange(0, SPLITS)
    there = (split < splits)[:, None] & known[None, :]
    at = (client * splits + split)[:, None] * (2 * channels) + channel[None, :]
    one = tl.load(parts + at, mask=there, other=0.0)
    return one, tl.load(parts + channels + at, mask=there, other=0.0)


@triton.jit
def _combined(means, spreads, counts, total):  # type: ignore[no-untyped-def]
    """Mean, and sum of squared distances from it, of parts [part, channel] that have `counts` numbers each."""
    mean = tl.sum(means * counts[:, None], 0) / total
    apart = means - mean[None, :]
    return mean, tl.sum(spreads + apart * apart * counts[:, None], 0)


@triton.jit  # type: ignore[untyped-decorator]
def _moments(  # type: ignore[no-untyped-def]
    x, begin, end, channels, channel, known, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Mean, and sum of squared distances from it, of the rows from `begin` to before `end`, as Welford has it."""
    lane = tl.arange(0, ROWS)
    means = tl.zeros([ROWS, COLUMNS], tl.float32)
    spreads = tl.zeros([ROWS, COLUMNS], tl.float32)
    number = 0.0
    for start in range(begin, end, ROWS):
        row = start + lane
        inside = (row < end)[:, None] & known[None, :]
        value = tl.load(x + row[:, None] * channels + channel[None, :], mask=inside, other=0.0)
        number += 1.0
        apart = tl.where(inside, value - means, 0.0)
        means += apart * (1.0 / number)
        spreads += apart * (value - means)
    counts = ((tl.maximum(end - begin - lane, 0) + ROWS - 1) // ROWS).to(tl.float32)
    return _combined(means, spreads, counts, end - begin)


@triton.jit  # type: ignore[untyped-decorator]
def _add_moments(  # type: ignore[no-untyped-def]
    x, parts, rows, channels, share, splits, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Mean, and sum of squared distances from it, of a share of the rows."""
    client, channel, known, begin, end = _place(rows, channels, share, COLUMNS)
    mean, spread = _moments(x + client * rows * channels, begin, end, channels, channel, known, ROWS, COLUMNS)
    _leave(parts, client, channel, known, channels, splits, mean, spread)


@triton.jit  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    x, parts, gammas, betas, running_means, running_vars, residuals, eps, eps_of, y, means, rstds, stride,
    running_stride, rows, channels, share, splits, momentum, AFFINE: tl.constexpr, RUNNING: tl.constexpr,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr, OWN_EPS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The outputs of a share of the rows; the first share's program also writes the statistics."""
    client, channel, known, begin, end = _place(rows, channels, share, COLUMNS)
    x += client * rows * channels
    y += client * rows * channels
    if SPLITS == 0:
        mean, spread = _moments(x, begin, end, channels, channel, known, ROWS, COLUMNS)
    else:
        some_means, some_spreads = _left(parts, client, channel, known, channels, splits, SPLITS)
        counts = tl.maximum(tl.minimum(rows - tl.arange(0, SPLITS) * share, share), 0).to(tl.float32)
        mean, spread = _combined(some_means, some_spreads, counts, rows)
    if OWN_EPS:
        eps = tl.load(eps_of + client)
    rstd = 1.0 / tl.sqrt(spread / rows + eps)
    mine = channel < tl.where(tl.program_id(1) == 0, channels, 0)
    tl.store(means + client * channels + channel, mean, mask=mine)
    tl.store(rstds + client * channels + channel, rstd, mask=mine)
    if RUNNING:
        running_means += client * running_stride + channel
        running_vars += client * running_stride + channel
        old_mean = tl.load(running_means, mask=mine, other=0.0)
        old_var = tl.load(running_vars, mask=mine, other=0.0)
        tl.store(running_means, (1.0 - momentum) * old_mean + momentum * mean, mask=mine)
        unbiased = spread / tl.maximum(rows - 1, 1)
        tl.store(running_vars, (1.0 - momentum) * old_var + momentum * unbiased, mask=mine)
    scale = rstd
    moved = tl.zeros([COLUMNS], tl.float32)
    if AFFINE:
        scale = rstd * tl.load(gammas + client * stride + channel, mask=known, other=0.0)
        moved = tl.load(betas + client * stride + channel, mask=known, other=0.0)
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & known[None, :]
        to = row[:, None] * channels + channel[None, :]
        value = tl.load(x + to, mask=inside, other=0.0)
        value = (value - mean[None, :]) * scale[None, :] + moved[None, :]
        if RESIDUAL:
            value += tl.load(residuals + client * rows * channels + to, mask=inside, other=0.0)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + to, value, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _slope_sums(  # type: ignore[no-untyped-def]
    slopes, x, y, kept, mean, rstd, begin, end, channels, channel, known, RELU: tl.constexpr, KEEP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of the slopes that ReLU let through, and of their products with the normalised inputs; if KEEP, the slopes.

    These are the gradients of beta and gamma.
    """
    plain = tl.zeros([ROWS, COLUMNS], tl.float32)
    scaled = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & known[None, :]
        at = row[:, None] * channels + channel[None, :]
        slope = tl.load(slopes + at, mask=inside, other=0.0)
        value = tl.load(x + at, mask=inside, other=0.0)
        if RELU:
            slope = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0.0, slope, 0.0)
        if KEEP:
            tl.store(kept + at, slope, mask=inside)
        plain += slope
        scaled += slope * ((value - mean[None, :]) * rstd[None, :])
    return tl.sum(plain, 0), tl.sum(scaled, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _add_slopes(  # type: ignore[no-untyped-def]
    slopes, x, y, kept, means, rstds, parts, rows, channels, share, splits, RELU: tl.constexpr, KEEP: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of beta and gamma by a share of the rows; if KEEP, also the slopes that ReLU let through."""
    client, channel, known, begin, end = _place(rows, channels, share, COLUMNS)
    first = client * rows * channels
    mean = tl.load(means + client * channels + channel, mask=known, other=0.0)
    rstd = tl.load(rstds + client * channels + channel, mask=known, other=0.0)
    plain, scaled = _slope_sums(
        slopes + first, x + first, y + first, kept + first, mean, rstd, begin, end, channels, channel, known, RELU,
        KEEP, ROWS, COLUMNS,
    )  # fmt: skip
    _leave(parts, client, channel, known, channels, splits, plain, scaled)


@triton.jit  # type: ignore[untyped-decorator]
def _carry_back(  # type: ignore[no-untyped-def]
    slopes, x, y, kept, means, rstds, gammas, parts, dgammas, dbetas, dx, stride, dstride, rows, channels, share,
    splits, AFFINE: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The inputs' gradient for a share of the rows; the first share's program writes those of gamma and beta."""
    client, channel, known, begin, end = _place(rows, channels, share, COLUMNS)
    slopes += client * rows * channels
    x += client * rows * channels
    y += client * rows * channels
    dx += client * rows * channels
    mean = tl.load(means + client * channels + channel, mask=known, other=0.0)
    rstd = tl.load(rstds + client * channels + channel, mask=known, other=0.0)
    if SPLITS == 0:
        plain, scaled = _slope_sums(
            slopes, x, y, kept + client * rows * channels, mean, rstd, begin, end, channels, channel, known, RELU, KEEP,
            ROWS, COLUMNS,
        )  # fmt: skip
    else:
        plains, scaleds = _left(parts, client, channel, known, channels, splits, SPLITS)
        plain, scaled = tl.sum(plains, 0), tl.sum(scaleds, 0)
    mine = channel < tl.where(tl.program_id(1) == 0, channels, 0)
    scale = rstd
    if AFFINE:
        tl.store(dgammas + client * dstride + channel, scaled, mask=mine)
        tl.store(dbetas + client * dstride + channel, plain, mask=mine)
        scale = rstd * tl.load(gammas + client * stride + channel, mask=known, other=0.0)
    plain = plain / rows
    scaled = scaled * rstd / rows
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & known[None, :]
        to = row[:, None] * channels + channel[None, :]
        slope = tl.load(slopes + to, mask=inside, other=0.0)
        value = tl.load(x + to, mask=inside, other=0.0)
        if RELU:
            slope = tl.where(tl.load(y + to, mask=inside, other=0.0) > 0.0, slope, 0.0)
        slope = slope - plain[None, :] - (value - mean[None, :]) * scaled[None, :]
        tl.store(dx + to, slope * scale[None, :], mask=inside)
