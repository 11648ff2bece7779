"""Fashion-MNIST as published: four IDX files, compressed with gzip or not.

An IDX file is a magic number (type and number of dimensions), the sizes, and the bytes; big-endian.
"""

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from fedgmr.tasks.formats.arrays import Counts, DataError, Images, Part, Pixels
from fedgmr.tasks.formats.download import Download

CLASSES = 10
FOLDER = "fashion-mnist"
_SITE = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
_BYTES = 0x08  # the only type of entry used here


class IdxFolder:
    """A folder with the four files."""

    def read(self, path: Path, seed: int = 0) -> Images:
        """Training and test images of 28 x 28 with their labels."""
        return Images(train=_part(path, "train"), test=_part(path, "t10k"))

    def count(self, path: Path) -> Counts:
        """The number of images."""
        labels = [_read(_file(path, f"{part}-labels-idx1-ubyte"), 1) for part in ("train", "t10k")]
        return Counts(train=len(labels[0]), test=len(labels[1]), classes=CLASSES)

    def download(self, root: Path) -> Path:
        """Fetch the four published files and check them."""
        folder = root / FOLDER
        folder.mkdir(exist_ok=True)
        for name, md5 in _MD5.items():
            Download(url=f"{_SITE}{name}.gz", name=f"{name}.gz", md5=md5).fetch(folder)
        return folder


def _part(folder: Path, part: str) -> Part:
    pictured, named = _file(folder, f"{part}-images-idx3-ubyte"), _file(folder, f"{part}-labels-idx1-ubyte")
    images, labels = _read(pictured, 3), _read(named, 1)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{pictured} has images of {images.shape[1:]} pixels: they must be 28 x 28.")
    if len(images) != len(labels):
        raise DataError(
            f"{pictured} has {len(images)} images and {named.name} {len(labels)} labels: get complete copies of both."
        )
    return Images.checked_part(images[:, None], labels, classes=CLASSES, path=named)


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder} has neither {name} nor {name}.gz: put one of them there.")


def _read(path: Path, dimensions: int) -> Pixels:
    with DataError.reading(path, "an IDX file"):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        start = 4 * (1 + dimensions)
        magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:start])
        if magic != _BYTES << 8 | dimensions:
            raise ValueError(f"it begins with {magic:#010x}")
        if len(content) != start + math.prod(shape):
            raise ValueError(f"it has {len(content) - start} bytes for {' x '.join(map(str, shape))} entries")
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()  # writable, as torch wants it
