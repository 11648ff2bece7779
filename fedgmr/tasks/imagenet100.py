"""ImageNet-100: 100 classes of ImageNet; ResNet-18 with cross-entropy.

The real data is a tree of image files that the user chose from ImageNet: training on random parts of each image scaled
to 168 x 168, test on the centre. Without it 100 classes of Tiny-ImageNet stand in, 64 x 64, moved by up to 8 pixels.
"""

from pathlib import Path

import torch

from fedgmr.tasks.formats.folders import CLASSES, count_folders, read_folders
from fedgmr.tasks.formats.packed import count_sheets, read_sheets
from fedgmr.tasks.images import FlipAndCrop, FlipAndResizedCrop, black_of, normaliser
from fedgmr.tasks.models.resnet18 import SHORTCUTS, ResNet18
from fedgmr.tasks.sources import Source, check_whole, find_source
from fedgmr.tasks.task import Augmentation, Task

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SOURCES = (
    Source(
        name="folders",
        paths=("imagenet100",),
        wanted=f"imagenet100/train and imagenet100/val ({CLASSES} class folders of images each)",
        count=count_folders,
    ),
    Source(
        name="tiny",
        paths=("tiny_imagenet100.npz",),
        wanted="tiny_imagenet100.npz (a stand-in)",
        count=count_sheets,
        stand_in=(
            "100 classes of Tiny-ImageNet, 64 x 64 pixels, stand in for ImageNet-100; numbers are not ImageNet-100's"
        ),
    ),
)
_TITLES = {"folders": "ImageNet-100 (ResNet-18)", "tiny": "Tiny-ImageNet for ImageNet-100 (ResNet-18)"}


def imagenet100(
    seed: int = 0, root: str | None = None, source: str = "auto", pixels: int = 168, cache: str | None = None
) -> Task:
    """Photographs of 100 classes; Tiny-ImageNet at 64 x 64 stands in where ImageNet's files are not.

    Args:
        seed: not used; the split is the published one.
        root: directory with the data; None: the environment variable FEDGMR_DATA.
        source: auto, folders or tiny.
        pixels: side of the images the net sees, for folders.
        cache: directory for the decoded images, for folders; None: beside them.
    """
    check_whole("pixels", pixels, 1)
    augment: Augmentation
    chosen, place = find_source("imagenet100", SOURCES, root, source)
    if chosen.name == "folders":
        data = read_folders(place, pixels=pixels, cache=Path(cache).expanduser() if cache else place.parent)
        augment = FlipAndResizedCrop(size=pixels)
    else:
        data = read_sheets(place, CLASSES, 64)
        augment = FlipAndCrop(pad=8, black=black_of(MEAN, STD))
    return Task(
        name="imagenet100",
        title=_TITLES[chosen.name],
        model=ResNet18,
        train=(torch.from_numpy(data.train[0]), torch.from_numpy(data.train[1])),
        test=(torch.from_numpy(data.test[0]), torch.from_numpy(data.test[1])),
        prepare=normaliser(MEAN, STD),
        augment=augment,
        keep=(SHORTCUTS,),
        stand_in=chosen.stand_in,
    )
