"""A tree of images, train/CLASS/*.jpeg and val/CLASS/*.jpeg, decoded once into one npz file.

Training images are kept a little larger than the net sees them, so that random crops have something to choose from;
test images are the centre of the image (docs/data.md, image folders). The npz file remembers names and
sizes of the image files; when those change it is made again.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgmr.tasks.formats.arrays import Counts, DataError, Images, Part, Pixels, pillow

CLASSES = 100
_SUFFIXES = (".jpeg", ".jpg", ".png")
_TEST_SHARE = 168 / 256  # of the shorter side: what a central crop of 168 leaves after resizing to 256
_ROOM = 8 / 7  # training images against what the net sees: 192 for 168


@dataclass(frozen=True, kw_only=True)
class ImageFolders:
    """A folder with train/ and val/ (or test/), each with one folder per class."""

    pixels: int = 168  # side of the images the net sees; training images are 8/7 as large
    cache: Path | None = None  # directory of the npz file; None: beside the folder

    def read(self, path: Path, seed: int = 0) -> Images:
        """All images under the folder."""
        files = _files(path)
        kept_in, mark = (self.cache or path.parent) / f"{path.name}-{self.pixels}.npz", _fingerprint(path, files)
        if not kept_in.is_file() or (kept := _cached(kept_in, mark)) is None:
            kept = _decode(files, self.pixels, kept_in, mark)
        train, test = (
            Images.checked_part(kept[part], kept[f"{part}_labels"], classes=CLASSES, path=kept_in) for part in files
        )
        return Images(train=train, test=test)

    def count(self, path: Path) -> Counts:
        """The number of images and classes."""
        files = _files(path)
        return Counts(train=len(files["train"]), test=len(files["test"]), classes=CLASSES)


def _files(folder: Path) -> dict[str, list[tuple[Path, int]]]:
    """(file, class) of all images for training and test, classes in the order of their names."""
    test = next((name for name in ("val", "test") if (folder / name).is_dir()), None)
    if test is None or not (folder / "train").is_dir():
        raise DataError(f"{folder} needs the folders train and val: put one folder per class into each.")
    names = [{entry.name for entry in (folder / part).iterdir() if entry.is_dir()} for part in ("train", test)]
    if names[0] != names[1] or len(names[0]) != CLASSES:
        raise DataError(
            f"{folder} has {len(names[0])} classes in train and {len(names[1])} in {test}, "
            f"{len(names[0] & names[1])} of them in both: put the same {CLASSES} class folders into each."
        )
    files: dict[str, list[tuple[Path, int]]] = {"train": [], "test": []}
    for found, part in zip(files.values(), ("train", test), strict=True):
        for label, own in enumerate(folder / part / name for name in sorted(names[0])):
            images = sorted(path for path in own.iterdir() if path.suffix.lower() in _SUFFIXES)
            if not images:
                raise DataError(f"{own} has no JPEG or PNG images: put the images of this class there.")
            found += [(path, label) for path in images]
    return files


def _fingerprint(folder: Path, files: dict[str, list[tuple[Path, int]]]) -> str:
    digest = hashlib.sha256()
    for part in files.values():
        for path, _ in part:
            digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def _cached(path: Path, mark: str) -> dict[str, Any] | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays) if str(arrays["fingerprint"]) == mark else None
    except Exception:  # whatever is wrong with it, it can be made again
        return None


def _decode(files: dict[str, list[tuple[Path, int]]], pixels: int, path: Path, mark: str) -> dict[str, Any]:
    """Decode everything and keep it in `path`, which is opened first: better to fail before the work than after."""
    decoder, part = pillow(), path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            arrays: dict[str, Any] = {"fingerprint": np.array(mark)}
            arrays["train"], arrays["train_labels"] = _squares(files["train"], 1.0, round(_ROOM * pixels), decoder)
            arrays["test"], arrays["test_labels"] = _squares(files["test"], _TEST_SHARE, pixels, decoder)
            np.savez(file, **arrays)
        part.replace(path)
    except OSError as error:
        fix = "give task.options.cache, a directory with room for the decoded images"
        raise DataError(f"{path} cannot be written ({error.strerror or error}): {fix}.") from error
    finally:
        with suppress(OSError):  # where even its folder could not be made
            part.unlink()
    return arrays


def _squares(files: Sequence[tuple[Path, int]], share: float, side: int, decoder: Any) -> Part:
    """The central square of every image, `share` of its shorter side, scaled to side x side."""

    def square(entry: tuple[Path, int]) -> Pixels:
        with DataError.reading(entry[0], "an image"), decoder.open(entry[0]) as image:
            width, height = image.size
            half = share * min(width, height) / 2
            box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
            scaled = image.convert("RGB").resize((side, side), decoder.Resampling.BILINEAR, box=box)
            return np.asarray(scaled).transpose(2, 0, 1)

    images = np.empty((len(files), 3, side, side), np.uint8)
    with ThreadPoolExecutor() as pool:  # decoding runs outside the interpreter's lock
        for index, pixels in enumerate(pool.map(square, files)):
            images[index] = pixels
    return images, np.array([label for _, label in files], np.int64)
