"""FEMNIST as LEAF writes it: JSON files with `users` and `user_data`, each user's x (784 numbers each) and y.

LEAF's pixels are 1 for white paper; they are inverted and kept as bytes, as PruneFL has them. A folder holds `train/`
and `test/`, which LEAF's preprocessing makes, or JSON files alone, of which a tenth of every writer's samples becomes
the test set.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgmr.seeding import generator
from fedgmr.tasks.formats.arrays import Counts, DataError, Images, Part, Pixels

CLASSES = 62
_SIDE = 28
_TEST_SHARE = 0.1
_EXAMPLE = "write {'users': [...], 'user_data': {user: {'x': [...], 'y': [...]}}}"


class LeafFolder:
    """A folder with LEAF's JSON files."""

    def read(self, path: Path, seed: int = 0) -> Images:
        """All writers under the folder, which splits them into training and test; else the seed draws the split."""
        writers: dict[str, int] = {}
        if not _is_split(path):
            return _split(_pooled(path, writers), seed)
        train, users = _pooled(path / "train", writers)
        return Images(train=train, test=_pooled(path / "test", writers)[0], users=users)

    def count(self, path: Path) -> Counts:
        """Samples and writers, without looking at the pixels."""
        parts = [path / "train", path / "test"] if _is_split(path) else [path]
        numbers = [[(user, len(y)) for _, user, _, y in _users(part)] for part in parts]
        train, *test = (sum(size for _, size in part) for part in numbers)
        return Counts(train=train, test=test[0] if test else None, users=len(dict(numbers[0])), classes=CLASSES)


def _is_split(folder: Path) -> bool:
    there = [(folder / part).is_dir() for part in ("train", "test")]
    if any(there) and not all(there):
        raise DataError(f"{folder} has only one of the folders train and test: LEAF's preprocessing makes both.")
    return all(there)


def _users(folder: Path) -> Iterator[tuple[Path, str, list[Any], list[Any]]]:
    """File, name, images and labels of the users in all files."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder} has no JSON files: put LEAF's there, see docs/data.md.")
    for path in files:
        with DataError.reading(path, "JSON"):
            content = json.loads(path.read_bytes())
        users, known = (content.get(key) if isinstance(content, dict) else None for key in ("users", "user_data"))
        if not isinstance(users, list) or not isinstance(known, dict):
            raise DataError(f"{path} has no users and user_data: {_EXAMPLE}.")
        for user in users:
            data = known.get(user) if isinstance(user, str) else None
            x, y = (data.get(key) if isinstance(data, dict) else None for key in ("x", "y"))
            if not isinstance(x, list) or not isinstance(y, list):
                raise DataError(f"{path} has no x and y for the user {user!r}: {_EXAMPLE}.")
            yield path, user, x, y


def _pooled(folder: Path, writers: dict[str, int]) -> tuple[Part, np.ndarray]:
    """The samples of all files, and the number of each one's writer, counted in the order they are met."""
    images, labels, users = [], [], []
    for path, user, x, y in _users(folder):
        if not x and not y:
            continue
        part = Images.checked_part(_pixels(x, path, user), y, classes=CLASSES, path=path)
        images.append(part[0])
        labels.append(part[1])
        users.append(np.full(len(y), writers.setdefault(user, len(writers)), np.int64))
    if not images:
        raise DataError(f"{folder} has no samples in its JSON files: put complete ones there, see docs/data.md.")
    return (np.concatenate(images), np.concatenate(labels)), np.concatenate(users)


def _pixels(rows: list[Any], path: Path, user: str) -> Pixels:
    with DataError.reading(path, f"pixels of the user {user!r}"):
        values = np.asarray(rows, dtype=np.float32)
    # Written so that NaN fails too.
    if values.shape != (len(rows), _SIDE * _SIDE) or not np.all((values >= 0) & (values <= 1)):
        raise DataError(
            f"{path} has images of the user {user!r} that are not 784 numbers from 0 to 1: correct the file."
        )
    return np.rint((1 - values) * 255).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE)


def _split(pooled: tuple[Part, np.ndarray], seed: int) -> Images:
    """A tenth of every writer's samples for the test, at least one where there are two."""
    (images, labels), users = pooled
    held = np.zeros(len(users), dtype=bool)
    for writer in np.unique(users):
        own = np.flatnonzero(users == writer)
        count = max(round(_TEST_SHARE * len(own)), min(1, len(own) - 1))
        held[generator(seed, "split", int(writer)).permutation(own)[:count]] = True
    return Images(train=(images[~held], labels[~held]), test=(images[held], labels[held]), users=users[~held])
