"""Fashion-MNIST: 60,000 + 10,000 grey images of ten kinds of clothes, for Conv-2 with ten classes; not in the paper.

Small, public and quick to fetch: `fedgmr data --download fashion_mnist`.
"""

import torch

from fedgmr.tasks.formats.idx import CLASSES, FOLDER, count_idx_folder, download_idx_folder, read_idx_folder
from fedgmr.tasks.images import to_unit
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.sources import Source, find_source
from fedgmr.tasks.task import Task

SOURCES = (
    Source(
        name="idx",
        paths=(FOLDER,),
        wanted=f"{FOLDER} (the four IDX files, train-images-idx3-ubyte.gz and so on)",
        count=count_idx_folder,
        download=download_idx_folder,
    ),
)


def fashion_mnist(seed: int = 0, root: str | None = None) -> Task:
    """Clothes of ten kinds, 28 x 28.

    Args:
        seed: not used; the split is the published one.
        root: directory with the data; None: the environment variable FEDGMR_DATA.
    """
    _, place = find_source("fashion_mnist", SOURCES, root, "auto")
    data = read_idx_folder(place)
    return Task(
        name="fashion_mnist",
        title="Fashion-MNIST (Conv-2)",
        model=lambda: Conv2(CLASSES),
        train=(torch.from_numpy(data.train[0]), torch.from_numpy(data.train[1])),
        test=(torch.from_numpy(data.test[0]), torch.from_numpy(data.test[1])),
        loss=one_hot_bce,
        prepare=to_unit,
    )
