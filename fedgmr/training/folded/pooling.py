"""The maximum of square fields, which may overlap; images lie [samples, height, width, channels].

A field's maximum leaves the number of its pixel. On the way back each pixel adds up the gradients of the fields whose
maximum it was, in a fixed order, where PyTorch's kernel for images that lie so adds in any.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgmr.training.stacked.convolution import cdiv

_SIZE = 512


def forward(images: Tensor, size: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """The maxima, and the number of each one's pixel in its field (uint8)."""
    samples, height, width, channels = images.shape
    out_height, out_width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
    maxima = torch.empty((samples, out_height, out_width, channels), device=images.device)
    codes = torch.empty(maxima.shape, dtype=torch.uint8, device=images.device)
    _forward[(samples * cdiv(maxima[0].numel(), _SIZE),)](
        images, maxima, codes, height, width, out_height, out_width, channels, size, stride, padding, _SIZE
    )
    return maxima, codes


def backward(slopes: Tensor, codes: Tensor, shape: torch.Size, size: int, stride: int, padding: int) -> Tensor:
    """The gradient of images of this shape."""
    samples, height, width, channels = shape
    into = torch.empty(shape, device=slopes.device)
    _backward[(samples * cdiv(into[0].numel(), _SIZE),)](
        slopes, codes, into, height, width, slopes.shape[1], slopes.shape[2], channels, size, stride, padding, _SIZE
    )
    return into


@triton.jit  # type: ignore[untyped-decorator]
def _places(height, width, channels, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program's sample, its numbers in that, which of them exist, and their row, column and channel."""
    count = height * width * channels
    pieces = (count + SIZE - 1) // SIZE
    at = tl.program_id(0) % pieces * SIZE + tl.arange(0, SIZE)
    place = at // channels
    # All samples together may have more numbers than 32 bits can count.
    sample = (tl.program_id(0) // pieces).to(tl.int64)
    return sample, at, at < count, place // width, place % width, at % channels


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    images, maxima, codes, height, width, out_height, out_width, channels, FIELD: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    sample, at, inside, y, x, channel = _places(out_height, out_width, channels, SIZE)
    images += sample * (height * width * channels)
    maxima += sample * (out_height * out_width * channels)
    codes += sample * (out_height * out_width * channels)
    best = tl.full([SIZE], float("-inf"), tl.float32)
    code = tl.zeros([SIZE], tl.int32)
    for number in tl.static_range(FIELD * FIELD):
        in_y, in_x = y * STRIDE - PADDING + number // FIELD, x * STRIDE - PADDING + number % FIELD
        seen = inside & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
        value = tl.load(images + (in_y * width + in_x) * channels + channel, mask=seen, other=float("-inf"))
        larger = (value > best) | (value != value)  # a NaN is handed on
        code = tl.where(larger, number, code)
        best = tl.where(larger, value, best)
    tl.store(maxima + at, best, mask=inside)
    tl.store(codes + at, code.to(tl.uint8), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    slopes, codes, into, height, width, out_height, out_width, channels, FIELD: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    sample, at, inside, y, x, channel = _places(height, width, channels, SIZE)
    into += sample * (height * width * channels)
    slopes += sample * (out_height * out_width * channels)
    codes += sample * (out_height * out_width * channels)
    total = tl.zeros([SIZE], tl.float32)
    for number in tl.static_range(FIELD * FIELD):  # the fields in which this pixel has this number
        over, left = y + PADDING - number // FIELD, x + PADDING - number % FIELD
        out_y, out_x = over // STRIDE, left // STRIDE
        there = inside & (over >= 0) & (left >= 0) & (over % STRIDE == 0) & (left % STRIDE == 0)
        there = there & (out_y < out_height) & (out_x < out_width)
        field = (out_y * out_width + out_x) * channels + channel
        chosen = tl.load(codes + field, mask=there, other=255).to(tl.int32) == number
        total += tl.load(slopes + field, mask=there & chosen, other=0.0)
    tl.store(into + at, total, mask=inside)
