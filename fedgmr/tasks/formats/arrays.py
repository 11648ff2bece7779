"""The arrays that image formats are read into, and the checks that all formats share.

Formats are read under `DataError.reading`, so that whatever a decoder raises on a damaged file becomes one sentence
about it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedgmr.settings.refusals import say_in_one_line

Pixels = NDArray[np.uint8]  # [samples, channels, height, width]
Integers = NDArray[np.int64]
Part = tuple[Pixels, Integers]  # images and their labels


class DataError(ValueError):
    """Data that cannot be used, said in one sentence: the file, what is wrong, what to do."""

    @classmethod
    @contextmanager
    def reading(cls, path: Path, what: str) -> Iterator[None]:
        """Turn whatever goes wrong while reading `path`, which should be `what`, into a sentence."""
        try:
            yield
        except DataError:
            raise
        except Exception as error:  # decoders raise whatever they like
            reason = say_in_one_line(error)
            raise cls(f"{path} cannot be read as {what} ({reason}): get a complete copy of it.") from error


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Images and labels for training and test, and the user of each training image where users are known."""

    train: Part
    test: Part
    users: Integers | None = None

    @staticmethod
    def checked_part(images: Pixels, labels: ArrayLike, *, classes: int, path: Path) -> Part:
        """The images and their labels as int64, once there are as many of each and every label is a class."""
        with DataError.reading(path, "labels"):
            numbers = np.asarray(labels)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise DataError(f"{path} has labels that are no whole numbers: get a complete copy of it.")
        if not len(images) or len(images) != len(numbers):
            raise DataError(f"{path} has {len(images)} images and {len(numbers)} labels: get a complete copy of it.")
        wrong = np.flatnonzero((numbers < 0) | (numbers >= classes))
        if len(wrong):
            raise DataError(
                f"{path} has the label {numbers[wrong[0]]} at sample {wrong[0]}: "
                f"labels go from 0 to {classes - 1}; correct or replace the file."
            )
        return images, numbers.astype(np.int64)

    def fields(self) -> dict[str, Any]:
        """The fields `train`, `test` and `users` of a Task, as tensors."""
        users = None if self.users is None else torch.from_numpy(self.users)
        train, test = (tuple(map(torch.from_numpy, part)) for part in (self.train, self.test))
        return {"train": train, "test": test, "users": users}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The numbers of samples, users and classes in a source, for people."""

    train: int
    test: int | None = None  # None: not split yet
    users: int | None = None
    classes: int | None = None

    def __str__(self) -> str:
        samples = f"{self.train:,} samples" if self.test is None else f"{self.train:,} + {self.test:,} samples"
        named = ((self.users, "users"), (self.classes, "classes"))
        return ", ".join([samples, *(f"{number:,} {what}" for number, what in named if number is not None)])


def pillow() -> Any:
    """The module PIL.Image, which decodes JPEG and PNG."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise DataError(
            "These images are compressed, and the package pillow is missing: pip install pillow."
        ) from error
    return Image
