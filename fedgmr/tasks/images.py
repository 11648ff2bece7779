"""Images on the device: bytes to normalised floats, and augmentation of whole batches at once.

Data stays uint8 [samples, channels, height, width]; `prepare` and `augment` of a Task work on batches of it, on any
device. Random numbers are drawn beforehand with numpy: they are the same on every device, and the work on the device
never waits for the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedgmr.tasks.task import Drawn

_AREA = (0.08, 1.0)  # of the image, in a resized crop
_ASPECT = (3 / 4, 4 / 3)


def to_unit(pixels: Tensor) -> Tensor:
    """Bytes to 0..1."""
    return pixels.to(torch.get_default_dtype()).div_(255.0)


@dataclass(frozen=True, kw_only=True)
class Normaliser:
    """Bytes to 0..1, then (x - mean) / std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        """The images, normalised."""
        x = to_unit(pixels)
        return x.sub_(_per_channel(self.mean, x)).div_(_per_channel(self.std, x))

    @property
    def black(self) -> tuple[float, ...]:
        """The value of a black pixel after this, per channel."""
        return tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))


@dataclass(frozen=True, kw_only=True)
class FlipAndCrop:
    """Mirror every other image, and move each by up to `pad` pixels; what comes in from outside is `black`."""

    pad: int
    black: tuple[float, ...]  # the value of a black pixel after `prepare`, per channel

    def draw(self, draws: np.random.Generator, count: int) -> Drawn:
        """Pixels down, pixels to the right, and 1 where the image is mirrored."""
        moved = draws.integers(-self.pad, self.pad + 1, size=(count, 2))
        mirrored = draws.integers(2, size=(count, 1))
        return np.concatenate([moved, mirrored], axis=1).astype(np.float32)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The images, moved and mirrored."""
        count, _, height, width = images.shape
        device = images.device
        down, right, mirrored = drawn.to(torch.int64).unsqueeze(2).unbind(1)
        rows = torch.arange(height, device=device) + down
        columns = torch.arange(width, device=device) + right
        columns = torch.where(mirrored > 0, columns.flip(1), columns)
        inside = _within(rows, height)[:, None, :, None] & _within(columns, width)[:, None, None, :]
        each = torch.arange(count, device=device)[:, None, None]
        moved = images[each, :, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
        return torch.where(inside, moved.permute(0, 3, 1, 2), _per_channel(self.black, images))


@dataclass(frozen=True, kw_only=True)
class FlipAndResizedCrop:
    """Mirror every other image, and scale a random part of each (8 to 100 % of its area) to size x size."""

    size: int

    def draw(self, draws: np.random.Generator, count: int) -> Drawn:
        """Width and centre, height and centre of the part; the image is -1..1, and a negative width mirrors."""
        area, aspect, x, y, mirror = draws.random((5, count))
        area = _AREA[0] + (_AREA[1] - _AREA[0]) * area
        aspect = _ASPECT[0] * (_ASPECT[1] / _ASPECT[0]) ** aspect
        wide, high = np.sqrt(area * aspect).clip(max=1), np.sqrt(area / aspect).clip(max=1)
        # The centre stays so far inside that the part does too.
        across = [np.where(mirror < 0.5, -wide, wide), (2 * x - 1) * (1 - wide)]
        along = [high, (2 * y - 1) * (1 - high)]
        return np.stack([*across, *along], axis=1).astype(np.float32)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The parts, scaled."""
        count, channels, _, _ = images.shape
        theta = drawn.new_zeros(count, 2, 3)  # from the part's coordinates to the image's
        theta[:, 0, ::2], theta[:, 1, 1:] = drawn[:, :2], drawn[:, 2:]
        grid = functional.affine_grid(theta, [count, channels, self.size, self.size], align_corners=False)
        return functional.grid_sample(images, grid.to(images.dtype), padding_mode="border", align_corners=False)


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    # Filled where it is needed: a copy from the host has no place in a captured CUDA graph.
    return torch.cat([like.new_full((1, 1, 1), value) for value in values])


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
