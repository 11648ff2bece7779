"""CIFAR-10: 50,000 + 10,000 colour images of ten classes; VGG-11 with binary cross-entropy (A29).

Training images are mirrored and moved by up to 4 pixels, as PruneFL does.
"""

import torch

from fedgmr.tasks.formats.cifar import CLASSES, FOLDER, count_batches, download_batches, read_batches
from fedgmr.tasks.formats.packed import count_sheets, read_sheets
from fedgmr.tasks.images import FlipAndCrop, black_of, normaliser
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.tasks.models.vgg11 import VGG11
from fedgmr.tasks.sources import Source, find_source
from fedgmr.tasks.task import Task

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SOURCES = (
    Source(
        name="batches",
        paths=(FOLDER,),
        wanted=f"{FOLDER} (the six batches of the Python version)",
        count=count_batches,
        download=download_batches,
    ),
    Source(
        name="packed",
        paths=("cifar10.npz",),
        wanted="cifar10.npz (the same images after JPEG compression)",
        count=count_sheets,
        stand_in="JPEG copies (37 dB) of all CIFAR-10 images stand in for the originals",
    ),
)
_TITLES = {"batches": "CIFAR-10 (VGG-11)", "packed": "CIFAR-10 in JPEG copies (VGG-11)"}


def cifar10(seed: int = 0, root: str | None = None, source: str = "auto") -> Task:
    """Colour images of ten classes, 32 x 32.

    Args:
        seed: not used; the split is the published one.
        root: directory with the data; None: the environment variable FEDGMR_DATA.
        source: auto, batches or packed.
    """
    chosen, place = find_source("cifar10", SOURCES, root, source)
    data = read_batches(place) if chosen.name == "batches" else read_sheets(place, CLASSES, 32)
    return Task(
        name="cifar10",
        title=_TITLES[chosen.name],
        model=VGG11,
        train=(torch.from_numpy(data.train[0]), torch.from_numpy(data.train[1])),
        test=(torch.from_numpy(data.test[0]), torch.from_numpy(data.test[1])),
        loss=one_hot_bce,
        prepare=normaliser(MEAN, STD),
        augment=FlipAndCrop(pad=4, black=black_of(MEAN, STD)),
        stand_in=chosen.stand_in,
    )
