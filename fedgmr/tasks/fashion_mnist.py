"""Fashion-MNIST: 60,000 + 10,000 grey images of ten kinds of clothes, for Conv-2 with ten classes; not in the paper.

Small, public and quick to fetch: `fedgmr data --download fashion_mnist`.
"""

from fedgmr.tasks.formats.idx import CLASSES, FOLDER, IdxFolder
from fedgmr.tasks.images import to_unit
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.tasks.models.conv2 import Conv2
from fedgmr.tasks.sources import Source
from fedgmr.tasks.task import Task

SOURCES = (
    Source(
        name="idx",
        title="Fashion-MNIST (Conv-2)",
        paths=(FOLDER,),
        contents=f"{FOLDER} (the four IDX files, train-images-idx3-ubyte.gz and so on)",
        format=IdxFolder(),
        download=IdxFolder().download,
    ),
)


def fashion_mnist(seed: int = 0, root: str | None = None) -> Task:
    """Clothes of ten kinds, 28 x 28.

    `root` is the directory with the data, see `Source.find`. The split is published.
    """
    chosen, place = Source.find("fashion_mnist", SOURCES, root, "auto")
    return Task(
        name="fashion_mnist",
        model=lambda: Conv2(CLASSES),
        **chosen.fields(place),
        loss=one_hot_bce,
        prepare=to_unit,
    )
