"""Packed image files, one npz each: JPEG sheets (cifar10, tiny_imagenet100) or plain arrays (EMNIST, MNIST by writer).

docs/data.md has their arrays. A sheet is one large JPEG of square tiles, left to right, then top to bottom; a file has
several sheets one after the other, and the last may have tiles to spare. Arrays are never unpickled.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedgmr.tasks.formats.arrays import Counts, DataError, Images, Part, pillow


@dataclass(frozen=True, kw_only=True)
class ImageSheets:
    """JPEG sheets of tiles of side x side pixels."""

    classes: int
    side: int

    def read(self, path: Path, seed: int = 0) -> Images:
        """The tiles and their labels."""
        decoder = pillow()
        with _opened(path) as arrays:
            if int(arrays["tile"]) != self.side:
                raise DataError(f"{path} has tiles of {int(arrays['tile'])} pixels: they must be of {self.side}.")
            train, test = (_tiles(arrays, part, self.classes, path, decoder) for part in ("train", "test"))
        return Images(train=train, test=test)

    def count(self, path: Path) -> Counts:
        """The number of images."""
        with _opened(path) as arrays:
            labels = arrays["train_labels"]
            return Counts(train=len(labels), test=len(arrays["test_labels"]), classes=len(np.unique(labels)))


@dataclass(frozen=True, kw_only=True)
class ImageArrays:
    """Plain arrays of grey images [samples, 28, 28], with the writer of each where the file has them."""

    classes: int

    def read(self, path: Path, seed: int = 0) -> Images:
        """The images, their labels and their writers."""
        with _opened(path) as arrays:
            train, test = (_plain(arrays, part, self.classes, path) for part in ("train", "test"))
            users = arrays["writer_train"].astype(np.int64) if "writer_train" in arrays else None
            if users is not None and users.shape != train[1].shape:
                raise DataError(
                    f"{path} has {len(train[1])} images and {len(users)} writers: get a complete copy of it."
                )
        return Images(train=train, test=test, users=users)

    def count(self, path: Path) -> Counts:
        """The number of images and writers."""
        with _opened(path) as arrays:
            labels, test = arrays["y_train"], len(arrays["y_test"])
            users = len(np.unique(arrays["writer_train"])) if "writer_train" in arrays else None
            return Counts(train=len(labels), test=test, users=users, classes=len(np.unique(labels)))


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, Any]]:
    with DataError.reading(path, "a packed npz file"), np.load(path, allow_pickle=False) as arrays:
        yield arrays


def _plain(arrays: Mapping[str, Any], part: str, classes: int, path: Path) -> Part:
    images = arrays[f"x_{part}"]
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
        raise DataError(f"{path} has x_{part} of {images.dtype} {images.shape}: it must be uint8 [images, 28, 28].")
    return Images.checked_part(images[:, None], arrays[f"y_{part}"], classes=classes, path=path)


def _tiles(arrays: Mapping[str, Any], part: str, classes: int, path: Path, decoder: Any) -> Part:
    """The tiles of one part, as many as there are labels, and the labels."""
    packed, bounds, side = arrays[f"{part}_jpeg"], arrays[f"{part}_offsets"], int(arrays["tile"])
    labels = arrays[f"{part}_labels"]
    images = np.empty((len(labels), 3, side, side), np.uint8)
    done = 0
    for start, stop in pairwise(bounds):
        sheet = np.asarray(decoder.open(io.BytesIO(packed[start:stop].tobytes())).convert("RGB"))
        rows, columns = sheet.shape[0] // side, sheet.shape[1] // side
        tiles = sheet.reshape(rows, side, columns, side, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side)
        taken = min(len(tiles), len(images) - done)
        images[done : done + taken] = tiles[:taken]
        done += taken
    if done < len(images):
        raise DataError(f"{path} has {done} images and {len(images)} labels for {part}: get a complete copy of it.")
    return Images.checked_part(images, labels, classes=classes, path=path)
