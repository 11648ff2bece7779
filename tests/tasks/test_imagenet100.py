"""ImageNet-100: a tree of images decoded once, random parts of images, the stand-in, and the paper's recipe."""

import errno
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgmr.experiments.assembly import resolve
from fedgmr.recipe import load_recipe
from fedgmr.tasks.formats.folders import ImageFolders
from fedgmr.tasks.imagenet100 import imagenet100
from fedgmr.tasks.images import FlipAndCrop, FlipAndResizedCrop
from fedgmr.tasks.task import Augmentation, Task
from fedgmr.training.schedules import Halving
from tasks.test_packed import write_sheets

Image = pytest.importorskip("PIL.Image", reason="image files need a decoder")
RECIPES = Path(__file__).parents[2] / "recipes" / "paper"


def write_tree(folder: Path, classes: int = 100) -> None:
    """Class c is grey of brightness 2·c; wide images for training, tall ones for the test, with a white frame."""
    for part, size in (("train", (40, 20)), ("val", (20, 40))):
        for label in range(classes):
            place = folder / part / f"n{label:03}"
            place.mkdir(parents=True)
            pixels = np.full((size[1], size[0], 3), 255, np.uint8)
            pixels[2:-2, 2:-2] = 2 * label
            Image.fromarray(pixels).save(place / ("a.PNG" if label % 2 else "a.png"))
    Image.fromarray(pixels[..., 0]).save(folder / "train" / "n001" / "b.jpeg")  # grey, and a second one of its class


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root") / "imagenet100"
    write_tree(folder)
    return folder


def test_decoding(tree: Path, tmp_path: Path) -> None:
    data = ImageFolders(pixels=14, cache=tmp_path).read(tree)
    assert data.train[0].shape == (101, 3, 16, 16)  # 8/7 of 14
    assert data.train[1].tolist() == [0, 1, 1, *range(2, 100)]
    assert data.test[0].shape == (100, 3, 14, 14)
    # The centre of a training image is its full height, frame and all; of a test image it is 168/256 of the width.
    assert data.train[0][0, 0, 8].tolist() == [0] * 16
    assert data.train[0][0, 0, 0, 8] > 200
    assert (data.test[0][10] == 20).all()
    assert str(ImageFolders().count(tree)) == "101 + 100 samples, 100 classes"


def test_the_cache_is_used_until_the_files_change(tree: Path, tmp_path: Path) -> None:
    cache = tmp_path / "new" / "place"
    first = ImageFolders(pixels=7, cache=cache).read(tree)
    (path,) = cache.iterdir()
    assert path.name == "imagenet100-7.npz"
    made = path.stat().st_mtime_ns
    again = ImageFolders(pixels=7, cache=cache).read(tree)
    assert path.stat().st_mtime_ns == made
    assert np.array_equal(first.train[0], again.train[0])
    path.write_bytes(path.read_bytes()[:-30])  # a damaged one is no harm
    assert np.array_equal(ImageFolders(pixels=7, cache=cache).read(tree).test[0], first.test[0])
    extra = tree / "val" / "n000" / "z.png"
    try:
        Image.new("RGB", (20, 20), (9, 9, 9)).save(extra)
        assert len(ImageFolders(pixels=7, cache=cache).read(tree).test[1]) == 101
    finally:
        extra.unlink()


def test_bad_trees(tmp_path: Path) -> None:
    folder = tmp_path / "imagenet100"
    folder.mkdir()
    with pytest.raises(ValueError, match="imagenet100 needs the folders train and val: put one folder per class"):
        ImageFolders().count(folder)
    write_tree(folder, classes=3)
    with pytest.raises(
        ValueError, match="has 3 classes in train and 3 in val, 3 of them in both: put the same 100 class"
    ):
        ImageFolders().count(folder)


def test_bad_images(tmp_path: Path) -> None:
    folder = tmp_path / "imagenet100"
    write_tree(folder)
    broken = folder / "val" / "n042" / "a.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ValueError, match=r"val/n042/a\.png cannot be read as an image \(.+\): get a complete copy of it"
    ):
        ImageFolders(pixels=7, cache=tmp_path).read(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["imagenet100"], "nothing half done is left"
    broken.unlink()
    with pytest.raises(ValueError, match=r"val/n042 has no JPEG or PNG images: put the images of this class there"):
        ImageFolders(pixels=7, cache=tmp_path).read(folder)


def test_a_cache_that_cannot_be_written(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"imagenet100-7\.npz cannot be written \(.*\): give task\.options\.cache, a direc"
    ):
        ImageFolders(pixels=7, cache=tmp_path / "file").read(tree)


def test_a_disk_that_is_full_at_last(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(ValueError, match=r"imagenet100-7\.npz cannot be written \(No space left on device\): give"):
        ImageFolders(pixels=7, cache=tmp_path).read(tree)
    assert list(tmp_path.iterdir()) == []


def test_random_parts_of_images() -> None:
    augment = FlipAndResizedCrop(size=10)
    ramp = torch.linspace(0, 1, 24).expand(500, 1, 24, 24)
    drawn = augment.draw(np.random.default_rng(0), 500)
    assert (drawn.shape, drawn.dtype) == ((500, 4), np.float32)
    made = augment.apply(ramp, torch.from_numpy(drawn))
    assert made.shape == (500, 1, 10, 10)
    steps = made[:, 0, 0, 1:] - made[:, 0, 0, :-1]
    rising = (steps > 0).all(1)
    assert (rising | (steps < 0).all(1)).all(), "a part of a ramp is a ramp, mirrored or not"
    assert 0.4 < rising.float().mean() < 0.6
    assert made.min() >= 0
    assert made.max() <= 1
    # The width of a part: between sqrt(0.08 · 3/4) and the whole.
    width = steps.abs().mean(1) * 10
    assert width.min() > 0.24 * 0.9
    assert 0.95 < width.max() < 1.05
    flat = torch.full((3, 2, 24, 24), 0.7)
    assert torch.allclose(augment.apply(flat, torch.from_numpy(drawn[:3])), torch.tensor(0.7))


def test_a_part_by_hand() -> None:
    # The left half of four columns and the lower half of four rows, mirrored, scaled to 2 x 2.
    image = torch.arange(16.0).view(1, 1, 4, 4)
    drawn = torch.tensor([[-0.5, -0.5, 0.5, 0.5]])
    made = FlipAndResizedCrop(size=2).apply(image, drawn)
    assert torch.allclose(made, torch.tensor([[[[9.0, 8.0], [13.0, 12.0]]]]))


@pytest.mark.parametrize("augment", [FlipAndCrop(pad=4, black=(0.0, 1.0, 2.0)), FlipAndResizedCrop(size=9)])
def test_augmentation_never_looks_at_a_value(augment: Augmentation) -> None:
    # Tensors without values: whatever reads one of them raises. So it can be captured in a CUDA graph.
    drawn = torch.from_numpy(augment.draw(np.random.default_rng(0), 5)).to("meta")
    made = augment.apply(torch.empty(5, 3, 9, 9, device="meta"), drawn)
    assert made.shape == (5, 3, 9, 9)


def augmented(task: Task, count: int) -> Tensor:
    assert task.augment is not None
    drawn = task.augment.draw(np.random.default_rng(0), count)
    return task.augment.apply(task.inputs(task.train.inputs[:count]), torch.from_numpy(drawn))


def test_sources(tree: Path, tmp_path: Path) -> None:
    write_sheets(tmp_path / "tiny_imagenet100.npz", tile=64, classes=100)
    tiny = imagenet100(root=str(tmp_path))
    assert tiny.title == "Tiny-ImageNet for ImageNet-100 (ResNet-18)"
    assert "stand in for ImageNet-100" in str(tiny.stand_in)
    assert tiny.train.inputs.shape == (11, 3, 64, 64)
    assert augmented(tiny, 11).shape == (11, 3, 64, 64)
    real = imagenet100(root=str(tree.parent), pixels=28, cache=str(tmp_path))
    assert (real.title, real.stand_in) == ("ImageNet-100 (ResNet-18)", None)
    inputs = augmented(real, 2)
    assert inputs.shape == (2, 3, 28, 28)
    assert [path.name for path in tree.parent.iterdir()] == ["imagenet100"]
    assert real.layout().prunable_size == 11_046_080
    model = real.initial_model(0)
    real.loss(model(inputs), real.train.targets[:2]).backward()


def test_bad_options(tree: Path) -> None:
    with pytest.raises(ValueError, match=r"task\.options\.cache is 5: give the path of a directory, as a text"):
        imagenet100(root=str(tree.parent), cache=5)  # type: ignore[arg-type]
    for pixels in (0, "large", True):
        with pytest.raises(
            ValueError, match=rf"task\.options\.pixels is {pixels!r}: give a whole number of at least 1"
        ):
            imagenet100(root=str(tree.parent), pixels=pixels)  # type: ignore[arg-type]


def test_recipe_has_the_papers_settings(tmp_path: Path) -> None:
    recipe = load_recipe(str(RECIPES / "imagenet100.yaml"))
    assert (recipe.seconds, recipe.method.interval, recipe.network.sizes) == (280_000, 50, "paper")
    assert recipe.training.schedule == Halving(every=10_000)
    assert [recipe.training.rate(tick) for tick in (0, 10_000, 20_000)] == pytest.approx([0.05, 0.025, 0.0125])
    short = load_recipe(str(RECIPES / "imagenet100-short.yaml"))
    assert short.short
    write_sheets(tmp_path / "tiny_imagenet100.npz", tile=64, classes=100)
    period = resolve(short, imagenet100(root=str(tmp_path))).method.coordination.period
    assert 30 < short.seconds / period <= 40
