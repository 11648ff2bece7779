"""FEMNIST: handwritten characters of 62 classes, by writer; Conv-2 with binary cross-entropy (A29).

The real data is what LEAF makes of NIST's handwriting database. Without it EMNIST stands in (62 classes, writers
unknown, so deal it by Dirichlet), or MNIST with its writers (10 classes).
"""

from typing import Any

from fedgmr.tasks.formats.leaf import CLASSES, LeafFolder
from fedgmr.tasks.formats.packed import ImageArrays
from fedgmr.tasks.images import to_unit
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.tasks.models.conv2 import HEAD, Conv2
from fedgmr.tasks.sources import Source, kept_head
from fedgmr.tasks.task import Task

SOURCES = (
    Source(
        name="leaf",
        title="FEMNIST (Conv-2)",
        paths=("femnist",),
        contents="femnist/train and femnist/test (the JSON files of LEAF)",
        format=LeafFolder(),
    ),
    Source(
        name="emnist",
        title="EMNIST by class for FEMNIST (Conv-2)",
        paths=("emnist_byclass.npz",),
        contents="emnist_byclass.npz (a stand-in without writers)",
        format=ImageArrays(classes=CLASSES),
        stand_in="EMNIST by class stands in for FEMNIST: 62 classes, but no writers; numbers are not FEMNIST's",
    ),
    Source(
        name="mnist_writers",
        title="MNIST by writer for FEMNIST (Conv-2)",
        paths=("mnist_writers.npz",),
        contents="mnist_writers.npz (a stand-in with digits only)",
        format=ImageArrays(classes=CLASSES),
        stand_in="MNIST by writer stands in for FEMNIST: 10 of its 62 classes; numbers are not FEMNIST's",
    ),
)


def femnist(seed: int = 0, root: str | None = None, source: str = "auto", head: str = "ranked") -> Task:
    """Handwritten characters, 62 classes, 28 x 28; by writer where LEAF's files are, else EMNIST stands in.

    `root` and `source` (auto, leaf, emnist or mnist_writers) say where the data is, see `Source.find`. The seed splits
    each writer's samples where the files do not. With the `head` whole (ranked or whole) every sub-model has the whole
    last layer.
    """
    chosen, place = Source.find("femnist", SOURCES, root, source)
    return Task(
        name="femnist",
        **model_fields(head),
        **chosen.fields(place, seed),
        loss=one_hot_bce,
        prepare=to_unit,
    )


def model_fields(head: str = "ranked") -> dict[str, Any]:
    """The fields of the Task that its options decide without data."""
    return {"model": Conv2, "keep": kept_head(head, HEAD)}
