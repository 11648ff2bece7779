"""CIFAR-10 as published for Python: the pickles data_batch_1 to 5 and test_batch, 3,072 bytes per image.

Pickles can run code. These are read by an unpickler that knows numpy arrays and Python's own containers and refuses
everything else.
"""

import io
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgmr.tasks.formats.arrays import Counts, DataError, Images, Part
from fedgmr.tasks.formats.download import Download

CLASSES = 10
FOLDER = "cifar-10-batches-py"
ARCHIVE = Download(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    name="cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
)
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = "test_batch"


class CifarBatches:
    """A folder with the six batches."""

    def read(self, path: Path, seed: int = 0) -> Images:
        """The five training batches and the test batch, in the published order."""
        parts = [_read(path / name) for name in _TRAIN]
        train = np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])
        return Images(train=train, test=_read(path / _TEST))

    def count(self, path: Path) -> Counts:
        """The number of images."""
        data = self.read(path)
        return Counts(train=len(data.train[1]), test=len(data.test[1]), classes=CLASSES)

    def download(self, root: Path) -> Path:
        """Fetch the published archive (or take the one in `root`), check it, and unpack the six batches."""
        archive, folder = ARCHIVE.fetch(root), root / FOLDER
        folder.mkdir(exist_ok=True)
        with DataError.reading(archive, "a tar archive"), tarfile.open(archive) as tar:
            for name in (*_TRAIN, _TEST):
                file = tar.extractfile(f"{FOLDER}/{name}")  # by name and as bytes: nothing else of the archive is used
                assert file is not None
                part = folder / f".{name}.part"
                part.write_bytes(file.read())
                part.replace(folder / name)
        return folder


def _read(path: Path) -> Part:
    if not path.is_file():
        raise DataError(f"{path} is missing: put all of data_batch_1 to 5 and test_batch there.")
    with DataError.reading(path, "a CIFAR-10 batch"):
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        rows, labels = _entry(content, "data"), _entry(content, "labels")
        images = np.asarray(rows)
        if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
            raise DataError(f"{path} has data of {images.dtype} {images.shape}: it must be uint8 [images, 3072].")
    return Images.checked_part(images.reshape(-1, 3, 32, 32), labels, classes=CLASSES, path=path)


def _entry(content: Any, name: str) -> Any:
    if not isinstance(content, Mapping):
        raise TypeError("it holds no dictionary")
    for key in (name.encode(), name):
        if key in content:
            return content[key]
    raise KeyError(f"no entry {name}")


def _latin1(text: str, encoding: str) -> bytes:
    """Bytes as Python 3 writes them in the old pickle protocols."""
    assert encoding == "latin1"
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Knows numpy arrays, and what pickle has opcodes for: numbers, text, bytes, lists, tuples, dictionaries."""

    def find_class(self, module: str, name: str) -> Any:
        """The classes and functions that a pickle may name."""
        known = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
            ("_codecs", "encode"): _latin1,
        }
        where = "multiarray" if module in ("numpy.core.multiarray", "numpy._core.multiarray") else module
        if (where, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return known[where, name]
