"""ImageNet-100: 100 classes of ImageNet; ResNet-18 with cross-entropy.

The real data is a tree of image files that the user chose from ImageNet: training on random parts of each image scaled
to 168 x 168, test on the centre. Without it 100 classes of Tiny-ImageNet stand in, 64 x 64, moved by up to 8 pixels.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from fedgmr.tasks.formats.folders import CLASSES, ImageFolders
from fedgmr.tasks.formats.packed import ImageSheets
from fedgmr.tasks.images import FlipAndCrop, FlipAndResizedCrop, Normaliser
from fedgmr.tasks.models.resnet18 import SHORTCUTS, HeadInit, Norm, ResNet18
from fedgmr.tasks.sources import Source, check_path, check_whole, check_word
from fedgmr.tasks.task import Augmentation, Task

COLOURS = Normaliser(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
SOURCES = (
    Source(
        name="folders",
        title="ImageNet-100 (ResNet-18)",
        paths=("imagenet100",),
        contents=f"imagenet100/train and imagenet100/val ({CLASSES} class folders of images each)",
        format=ImageFolders(),
    ),
    Source(
        name="tiny",
        title="Tiny-ImageNet for ImageNet-100 (ResNet-18)",
        paths=("tiny_imagenet100.npz",),
        contents="tiny_imagenet100.npz (a stand-in)",
        format=ImageSheets(classes=CLASSES, side=64),
        stand_in=(
            "100 classes of Tiny-ImageNet, 64 x 64 pixels, stand in for ImageNet-100; numbers are not ImageNet-100's"
        ),
    ),
)


def imagenet100(
    seed: int = 0,
    root: str | None = None,
    source: str = "auto",
    pixels: int = 168,
    cache: str | None = None,
    norm: Norm = "batch",
    head_init: HeadInit = "default",
) -> Task:
    """Photographs of 100 classes; Tiny-ImageNet at 64 x 64 stands in where ImageNet's files are not.

    `root` and `source` (auto, folders or tiny) say where the data is, see `Source.find`. For folders, `pixels` is the
    side of the images the net sees, and `cache` the directory for the decoded images, which may stay beside them. The
    split is published. `norm` (batch or group) is the kind of every norm, `head_init` (default or fan_in) how wide the
    last layer's initial weights are spread: up to 0.044, or 0.060.
    """
    check_whole("pixels", pixels, 1)
    check_path("cache", cache)
    augment: Augmentation = FlipAndCrop(pad=8, black=COLOURS.black)
    chosen, place = Source.find("imagenet100", SOURCES, root, source)
    if chosen.name == "folders":
        folders = ImageFolders(pixels=pixels, cache=Path(cache).expanduser() if cache else None)
        chosen, augment = replace(chosen, format=folders), FlipAndResizedCrop(size=pixels)
    return Task(
        name="imagenet100",
        **model_fields(norm, head_init),
        **chosen.fields(place),
        prepare=COLOURS,
        augment=augment,
    )


def model_fields(norm: Norm = "batch", head_init: HeadInit = "default") -> dict[str, Any]:
    """The fields of the Task that its options decide without data."""
    check_word("norm", norm, get_args(Norm))
    check_word("head_init", head_init, get_args(HeadInit))
    return {"model": partial(ResNet18, norm=norm, head_init=head_init), "keep": (SHORTCUTS,)}
