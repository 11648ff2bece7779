"""Batch norm of many clients, each with its own statistics, with the sum and the ReLU that may follow it.

Activations are [client, row, channel]; a row is a pixel of a sample. A first kernel adds up shares of the rows, a
second one combines them in their order and goes through the rows again; few rows are left to the second one alone.
Shares depend on the numbers of rows and channels alone, so a client's bits do not depend on its company. Import it only
where Triton is there.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.stacked.convolution import cdiv, power

_ALONE = 512  # rows up to which there are no shares
_MOST_SHARES = 64
_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class _Shares:
    """How the rows are shared out; `splits` is 0 where they are not."""

    splits: int
    share: int  # rows
    rows: int  # of a tile
    columns: int
    warps: int

    @classmethod
    def of(cls, x: Tensor) -> "_Shares":
        """For activations of this size; it only depends on a client's."""
        _, rows, channels = x.shape
        if rows <= _ALONE:  # narrow, so that there are enough programs
            tile = min(256, power(rows))
            return cls(splits=0, share=rows, rows=tile, columns=16, warps=8 if tile == 256 else 4)
        share = cdiv(cdiv(rows, _MOST_SHARES), _ROWS) * _ROWS
        columns = min(64, power(channels))
        return cls(splits=cdiv(rows, share), share=share, rows=_ROWS, columns=columns, warps=8 if columns > 32 else 4)

    def grid(self, x: Tensor) -> tuple[int, int, int]:
        """Programs by columns, shares and clients."""
        return cdiv(x.shape[2], self.columns), max(1, self.splits), len(x)

    def room(self, x: Tensor) -> Tensor:
        """Memory for two numbers per channel and share."""
        return x.new_empty((len(x), self.splits, 2, x.shape[2])) if self.splits else x

    @property
    def read(self) -> int:
        """Shares that are read at once: a power of two."""
        return power(self.splits) if self.splits else 0


def forward(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, residual: Tensor | None, relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The outputs, and the mean and the reciprocal deviation [C, K] of x [C, R, K]; running statistics move in place.

    Outputs are normalised, scaled by gamma and moved by beta [C, K], have the residual added, then ReLU.
    """
    assert x.is_contiguous()
    assert residual is None or residual.is_contiguous()
    assert (running_mean is None) == (running_var is None)
    clients, rows, channels = x.shape
    shares, y = _Shares.of(x), x.new_empty(x.shape)
    mean, rstd = x.new_empty((clients, channels)), x.new_empty((clients, channels))
    parts, grid = shares.room(x), shares.grid(x)
    if shares.splits:
        add_moments[grid](
            x, parts, rows, channels, shares.share, shares.splits, shares.rows, shares.columns, num_warps=shares.warps
        )
    normalise[grid](
        x, parts, _or(gamma, x), _or(beta, x), _or(running_mean, x), _or(running_var, x), _or(residual, x), y, mean,
        rstd, _stride(gamma), _stride(beta), _stride(running_mean), _stride(running_var), rows, channels, shares.share,
        shares.splits, momentum, eps, gamma is not None, beta is not None, running_mean is not None,
        residual is not None, relu, shares.read, shares.rows, shares.columns, num_warps=shares.warps,
    )  # fmt: skip
    return y, mean, rstd


def backward(
    dy: Tensor, x: Tensor, y: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor | None, dgamma: Tensor | None,
    dbeta: Tensor | None, relu: bool, residual: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The gradients of x and, if there was one, of the residual; those of gamma and beta go to dgamma and dbeta."""
    assert dy.is_contiguous()
    assert x.is_contiguous()
    assert y.is_contiguous()
    _, rows, channels = x.shape
    shares, dx, keep = _Shares.of(x), x.new_empty(x.shape), relu and residual
    kept = x.new_empty(x.shape) if keep else dy
    parts, grid, slopes = shares.room(x), shares.grid(x), dy
    if shares.splits:
        add_slopes[grid](
            dy, x, y, kept, mean, rstd, parts, rows, channels, shares.share, shares.splits, relu, keep, shares.rows,
            shares.columns, num_warps=shares.warps,
        )  # fmt: skip
        slopes = kept
    masked = relu and slopes is dy  # otherwise it has been done
    carry_back[grid](
        slopes, x, y, kept, mean, rstd, _or(gamma, x), parts, _or(dgamma, x), _or(dbeta, x), dx, _stride(gamma),
        _stride(dgamma), _stride(dbeta), rows, channels, shares.share, shares.splits, gamma is not None,
        dgamma is not None, dbeta is not None, masked, keep and not shares.splits, shares.read, shares.rows,
        shares.columns, num_warps=shares.warps,
    )  # fmt: skip
    return dx, kept if residual else None


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """What a kernel is given where there is no tensor: anything, which it does not read."""
    return other if tensor is None else tensor


def _stride(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0)


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
def add_moments(  # type: ignore[no-untyped-def]
    x, parts, rows, channels, share, splits, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Mean, and sum of squared distances from it, of a share of the rows."""
    client = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = channel < channels
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, rows)
    mean, spread = _moments(x + client * rows * channels, begin, end, channels, channel, known, ROWS, COLUMNS)
    parts += (client * splits + tl.program_id(1)) * 2 * channels
    tl.store(parts + channel, mean, mask=known)
    tl.store(parts + channels + channel, spread, mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def normalise(  # type: ignore[no-untyped-def]
    x, parts, gammas, betas, running_means, running_vars, residuals, y, means, rstds, gamma_stride, beta_stride,
    mean_stride, var_stride, rows, channels, share, splits, momentum, eps, GAMMA: tl.constexpr, BETA: tl.constexpr,
    RUNNING: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The outputs of a share of the rows; the first share's program also writes the statistics."""
    client = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = channel < channels
    x += client * rows * channels
    y += client * rows * channels
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, rows)
    if SPLITS == 0:
        mean, spread = _moments(x, begin, end, channels, channel, known, ROWS, COLUMNS)
    else:
        split = tl.arange(0, SPLITS)
        there = (split < splits)[:, None] & known[None, :]
        at = (client * splits + split)[:, None] * (2 * channels) + channel[None, :]
        some_means = tl.load(parts + at, mask=there, other=0.0)
        some_spreads = tl.load(parts + channels + at, mask=there, other=0.0)
        counts = tl.maximum(tl.minimum(rows - split * share, share), 0).to(tl.float32)
        mean, spread = _combined(some_means, some_spreads, counts, rows)
    rstd = 1.0 / tl.sqrt(spread / rows + eps)
    mine = channel < tl.where(tl.program_id(1) == 0, channels, 0)
    tl.store(means + client * channels + channel, mean, mask=mine)
    tl.store(rstds + client * channels + channel, rstd, mask=mine)
    if RUNNING:
        running_means += client * mean_stride + channel
        running_vars += client * var_stride + channel
        old_mean = tl.load(running_means, mask=mine, other=0.0)
        old_var = tl.load(running_vars, mask=mine, other=0.0)
        tl.store(running_means, (1.0 - momentum) * old_mean + momentum * mean, mask=mine)
        unbiased = spread / tl.maximum(rows - 1, 1)
        tl.store(running_vars, (1.0 - momentum) * old_var + momentum * unbiased, mask=mine)
    scale = rstd
    if GAMMA:
        scale = rstd * tl.load(gammas + client * gamma_stride + channel, mask=known, other=0.0)
    moved = tl.zeros([COLUMNS], tl.float32)
    if BETA:
        moved = tl.load(betas + client * beta_stride + channel, mask=known, other=0.0)
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
def add_slopes(  # type: ignore[no-untyped-def]
    slopes, x, y, kept, means, rstds, parts, rows, channels, share, splits, RELU: tl.constexpr, KEEP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradients of beta and gamma by a share of the rows; if KEEP, also the slopes that ReLU let through."""
    client = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = channel < channels
    first = client * rows * channels
    mean = tl.load(means + client * channels + channel, mask=known, other=0.0)
    rstd = tl.load(rstds + client * channels + channel, mask=known, other=0.0)
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, rows)
    plain, scaled = _slope_sums(
        slopes + first, x + first, y + first, kept + first, mean, rstd, begin, end, channels, channel, known, RELU,
        KEEP, ROWS, COLUMNS,
    )  # fmt: skip
    parts += (client * splits + tl.program_id(1)) * 2 * channels
    tl.store(parts + channel, plain, mask=known)
    tl.store(parts + channels + channel, scaled, mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def carry_back(  # type: ignore[no-untyped-def]
    slopes, x, y, kept, means, rstds, gammas, parts, dgammas, dbetas, dx, gamma_stride, dgamma_stride, dbeta_stride,
    rows, channels, share, splits, GAMMA: tl.constexpr, DGAMMA: tl.constexpr, DBETA: tl.constexpr, RELU: tl.constexpr,
    KEEP: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The inputs' gradient for a share of the rows; the first share's program writes those of gamma and beta."""
    client = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = channel < channels
    slopes += client * rows * channels
    x += client * rows * channels
    y += client * rows * channels
    dx += client * rows * channels
    mean = tl.load(means + client * channels + channel, mask=known, other=0.0)
    rstd = tl.load(rstds + client * channels + channel, mask=known, other=0.0)
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, rows)
    if SPLITS == 0:
        plain, scaled = _slope_sums(
            slopes, x, y, kept + client * rows * channels, mean, rstd, begin, end, channels, channel, known, RELU, KEEP,
            ROWS, COLUMNS,
        )  # fmt: skip
    else:
        split = tl.arange(0, SPLITS)
        there = (split < splits)[:, None] & known[None, :]
        at = (client * splits + split)[:, None] * (2 * channels) + channel[None, :]
        plain = tl.sum(tl.load(parts + at, mask=there, other=0.0), 0)
        scaled = tl.sum(tl.load(parts + channels + at, mask=there, other=0.0), 0)
    mine = channel < tl.where(tl.program_id(1) == 0, channels, 0)
    if DGAMMA:
        tl.store(dgammas + client * dgamma_stride + channel, scaled, mask=mine)
    if DBETA:
        tl.store(dbetas + client * dbeta_stride + channel, plain, mask=mine)
    scale = rstd
    if GAMMA:
        scale = rstd * tl.load(gammas + client * gamma_stride + channel, mask=known, other=0.0)
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
