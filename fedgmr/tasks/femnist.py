"""FEMNIST: handwritten characters of 62 classes, by writer; Conv-2 with binary cross-entropy (A29).

The real data is what LEAF makes of NIST's handwriting database. Without it EMNIST stands in (62 classes, writers
unknown, so deal it by Dirichlet), or MNIST with its writers (10 classes).
"""

import torch

from fedgmr.tasks.formats.arrays import Images
from fedgmr.tasks.formats.leaf import CLASSES, count_leaf, read_leaf
from fedgmr.tasks.formats.packed import count_arrays, read_arrays
from fedgmr.tasks.images import to_unit
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.sources import Source, find_source
from fedgmr.tasks.task import Task

SOURCES = (
    Source(
        name="leaf",
        paths=("femnist",),
        wanted="femnist/train and femnist/test (the JSON files of LEAF)",
        count=count_leaf,
    ),
    Source(
        name="emnist",
        paths=("emnist_byclass.npz",),
        wanted="emnist_byclass.npz (a stand-in without writers)",
        count=count_arrays,
        stand_in="EMNIST by class stands in for FEMNIST: 62 classes, but no writers; numbers are not FEMNIST's",
    ),
    Source(
        name="mnist_writers",
        paths=("mnist_writers.npz",),
        wanted="mnist_writers.npz (a stand-in with digits only)",
        count=count_arrays,
        stand_in="MNIST by writer stands in for FEMNIST: 10 of its 62 classes; numbers are not FEMNIST's",
    ),
)
_TITLES = {
    "leaf": "FEMNIST (Conv-2)",
    "emnist": "EMNIST by class for FEMNIST (Conv-2)",
    "mnist_writers": "MNIST by writer for FEMNIST (Conv-2)",
}


def femnist(seed: int = 0, root: str | None = None, source: str = "auto") -> Task:
    """Handwritten characters, 62 classes, 28 x 28; by writer where LEAF's files are, else EMNIST stands in.

    Args:
        seed: splits each writer's samples where the files do not.
        root: directory with the data; None: the environment variable FEDGMR_DATA.
        source: auto, leaf, emnist or mnist_writers.
    """
    chosen, place = find_source("femnist", SOURCES, root, source)
    data: Images = read_leaf(place, seed) if chosen.name == "leaf" else read_arrays(place, CLASSES)
    return Task(
        name="femnist",
        title=_TITLES[chosen.name],
        model=Conv2,
        train=(torch.from_numpy(data.train[0]), torch.from_numpy(data.train[1])),
        test=(torch.from_numpy(data.test[0]), torch.from_numpy(data.test[1])),
        users=None if data.users is None else torch.from_numpy(data.users),
        loss=one_hot_bce,
        prepare=to_unit,
        stand_in=chosen.stand_in,
    )
