"""Images on the device: bytes to normalised floats, and augmentation of whole batches at once.

Data stays uint8 [samples, channels, height, width]; `prepare` and `augment` of a Task work on batches of it, on
whatever device they are. Every draw comes from the given generator, so a mini-batch is augmented the same way
however training is batched.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]

_AREA = (0.08, 1.0)  # of the image, in a resized crop
_ASPECT = (3 / 4, 4 / 3)


def to_unit(pixels: Tensor) -> Tensor:
    """Bytes to 0..1."""
    return pixels.to(torch.get_default_dtype()).div_(255.0)


def normaliser(mean: Sequence[float], std: Sequence[float]) -> Prepare:
    """Bytes to 0..1, then (x - mean) / std per channel."""

    def prepare(pixels: Tensor) -> Tensor:
        x = to_unit(pixels)
        return x.sub_(_per_channel(mean, x)).div_(_per_channel(std, x))

    return prepare


def black_of(mean: Sequence[float], std: Sequence[float]) -> tuple[float, ...]:
    """What a black pixel becomes in `normaliser`, per channel."""
    return tuple(-m / s for m, s in zip(mean, std, strict=True))


def flip_and_crop(pad: int, black: Sequence[float]) -> Augment:
    """Mirror every other image, and move each by up to `pad` pixels; what comes in from outside is `black`.

    Args:
        pad: pixels added on each side before a crop of the old size.
        black: the value of a black pixel after `prepare`, per channel.
    """

    def augment(images: Tensor, draws: torch.Generator) -> Tensor:
        count, _, height, width = images.shape
        device = images.device
        down, right = torch.randint(-pad, pad + 1, (2, count, 1), generator=draws, device=device)
        mirrored = torch.randint(2, (count, 1), generator=draws, device=device, dtype=torch.bool)
        rows = torch.arange(height, device=device) + down
        columns = torch.arange(width, device=device) + right
        columns = torch.where(mirrored, columns.flip(1), columns)
        inside = _within(rows, height)[:, None, :, None] & _within(columns, width)[:, None, None, :]
        each = torch.arange(count, device=device)[:, None, None]
        moved = images[each, :, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
        return torch.where(inside, moved.permute(0, 3, 1, 2), _per_channel(black, images))

    return augment


def flip_and_resized_crop(size: int) -> Augment:
    """Mirror every other image, and scale a random part of each (8 to 100 % of its area) to size x size."""

    def augment(images: Tensor, draws: torch.Generator) -> Tensor:
        count, channels, _, _ = images.shape
        area, aspect, x, y, mirror = torch.rand(5, count, generator=draws, device=images.device, dtype=images.dtype)
        area = _AREA[0] + (_AREA[1] - _AREA[0]) * area
        aspect = torch.exp(math.log(_ASPECT[0]) + math.log(_ASPECT[1] / _ASPECT[0]) * aspect)
        wide, high = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
        # From the crop's coordinates, -1..1, to the image's; the centre stays so far inside that the crop does too.
        theta = images.new_zeros(count, 2, 3)
        theta[:, 0, 0] = torch.where(mirror < 0.5, -wide, wide)
        theta[:, 1, 1] = high
        theta[:, 0, 2] = (2 * x - 1) * (1 - wide)
        theta[:, 1, 2] = (2 * y - 1) * (1 - high)
        grid = functional.affine_grid(theta, [count, channels, size, size], align_corners=False)
        return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)

    return augment


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
