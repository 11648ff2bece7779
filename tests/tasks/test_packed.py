"""Packed files, small ones written here and the real ones where FEDGMR_DATA says they are; and `fedgmr data`."""

import io
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgmr.cli.main import main
from fedgmr.tasks import named_task
from fedgmr.tasks.formats import arrays
from fedgmr.tasks.formats.packed import ImageArrays, ImageSheets
from fedgmr.tasks.sources import download, survey
from tasks.test_formats import write_batches, write_idx, write_leaf, write_lines

Image = pytest.importorskip("PIL.Image", reason="sheets are JPEG images")
real = pytest.mark.skipif("FEDGMR_DATA" not in os.environ, reason="FEDGMR_DATA is not set")

SHEETS, ARRAYS = ImageSheets(classes=10, side=32), ImageArrays(classes=62)


def sheet(colours: list[int], columns: int, tile: int) -> bytes:
    """Tiles of one colour each: red is the number given, green 255 - red, blue 40."""
    rows = -(-len(colours) // columns)
    pixels = np.zeros((rows * tile, columns * tile, 3), np.uint8)
    for index, red in enumerate(colours):
        top, left = index // columns * tile, index % columns * tile
        pixels[top : top + tile, left : left + tile] = (red, 255 - red, 40)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def write_sheets(path: Path, *, tile: int = 32, classes: int = 10, **changes: Any) -> Path:
    """Two sheets of six tiles for twelve training images less one, one of four for the test."""
    reds = [20 * number for number in range(12)]
    content: dict[str, Any] = {"tile": np.array(tile)}
    for part, sheets, images in (("train", (reds[:6], reds[6:]), 11), ("test", (reds[:4],), 4)):
        packed = [sheet(colours, 3, tile) for colours in sheets]
        content[f"{part}_jpeg"] = np.frombuffer(b"".join(packed), np.uint8)
        content[f"{part}_offsets"] = np.cumsum([0, *map(len, packed)])
        content[f"{part}_labels"] = (np.arange(images) % classes).astype(np.uint8)
    np.savez(path, **{name: value for name, value in (content | changes).items() if value is not None})
    return path


def write_arrays(path: Path, *, writers: bool = False, **changes: Any) -> Path:
    pixels = np.arange(6 * 784).reshape(6, 28, 28).astype(np.uint8)
    labels = np.array([0, 5, 9, 9, 5, 0], np.uint8)
    content = {"x_train": pixels, "y_train": labels, "x_test": pixels[:2], "y_test": labels[:2]}
    if writers:
        content["writer_train"] = np.array([4, 4, 2, 2, 7, 7], np.int16)
    np.savez_compressed(path, **{name: value for name, value in (content | changes).items() if value is not None})
    return path


def test_sheets(tmp_path: Path) -> None:
    data = SHEETS.read(write_sheets(tmp_path / "s.npz"))
    images, labels = data.train
    assert images.shape == (11, 3, 32, 32)
    assert images.dtype == np.uint8
    assert labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    # Left to right, top to bottom, sheet by sheet; JPEG keeps flat colours to within a few steps.
    assert np.abs(images[:, 0].mean((1, 2)) - 20 * np.arange(11)).max() < 4
    assert np.abs(images[:, 1].mean((1, 2)) - 255 + 20 * np.arange(11)).max() < 4
    assert np.abs(images[:, 2] - 40.0).max() < 8
    assert data.test[0].shape == (4, 3, 32, 32)
    assert str(SHEETS.count(tmp_path / "s.npz")) == "11 + 4 samples, 10 classes"


def test_arrays(tmp_path: Path) -> None:
    data = ARRAYS.read(write_arrays(tmp_path / "a.npz"))
    assert data.train[0].shape == (6, 1, 28, 28)
    assert data.train[0][1, 0, 0, 0] == 784 % 256
    assert data.train[1].tolist() == [0, 5, 9, 9, 5, 0]
    assert data.users is None
    assert str(ARRAYS.count(tmp_path / "a.npz")) == "6 + 2 samples, 3 classes"
    with_writers = ARRAYS.read(write_arrays(tmp_path / "w.npz", writers=True))
    assert with_writers.users is not None
    assert with_writers.users.tolist() == [4, 4, 2, 2, 7, 7]
    assert str(ARRAYS.count(tmp_path / "w.npz")) == "6 + 2 samples, 3 users, 3 classes"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"train_labels": np.full(11, 10)}, r"s\.npz has the label 10 at sample 0: labels go from 0 to 9"),
        ({"train_labels": np.zeros(13, int)}, r"s\.npz has 12 images and 13 labels for train: get a complete copy"),
        ({"test_jpeg": None}, r"s\.npz cannot be read as a packed npz file \(.*test_jpeg.*\): get a complete copy"),
        ({"train_jpeg": np.zeros(50, np.uint8)}, r"s\.npz cannot be read as a packed npz file \(cannot identify image"),
        ({"test_offsets": np.array([7, 90])}, r"s\.npz cannot be read as a packed npz file \(cannot identify"),
        ({"tile": np.array(16)}, r"s\.npz has tiles of 16 pixels: they must be of 32"),
        ({"test_labels": np.array([{}] * 4)}, r"s\.npz cannot be read as a packed npz file \(Object arrays"),
    ],
)
def test_bad_sheets(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        SHEETS.read(write_sheets(tmp_path / "s.npz", **changes))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"y_test": np.array([0, 62])}, r"a\.npz has the label 62 at sample 1: labels go from 0 to 61"),
        ({"y_train": np.zeros(5, int)}, r"a\.npz has 6 images and 5 labels"),
        ({"x_train": np.zeros((6, 28, 28))}, r"a\.npz has x_train of float64 \(6, 28, 28\): it must be uint8"),
        ({"x_test": np.zeros((2, 30, 30), np.uint8)}, r"a\.npz has x_test of uint8 \(2, 30, 30\): it must be uint8 \["),
        ({"writer_train": np.zeros(2, int)}, r"a\.npz has 6 images and 2 writers"),
        ({"x_test": None}, r"a\.npz cannot be read as a packed npz file \(.*x_test"),
    ],
)
def test_bad_arrays(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        ARRAYS.read(write_arrays(tmp_path / "a.npz", **changes))


@pytest.mark.parametrize("part", [0.02, 0.5, 0.98])
def test_truncated_files(part: float, tmp_path: Path) -> None:
    path = write_sheets(tmp_path / "s.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(
        ValueError, match=r"s\.npz cannot be read as a packed npz file \(.+\): get a complete copy of it"
    ):
        SHEETS.read(path)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sheets(tmp_path / "s.npz")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match="the package pillow is missing: pip install pillow"):
        arrays.pillow()
    with pytest.raises(ValueError, match="the package pillow is missing"):
        SHEETS.read(path)
    assert SHEETS.count(path).train == 11  # labels need no decoder


def test_survey_names_what_is_there_and_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_leaf(tmp_path / "femnist" / "a.json", {"a": [1, 2], "b": [3]})
    write_arrays(tmp_path / "emnist_byclass.npz")
    write_batches(tmp_path / "cifar-10-batches-py")
    write_idx(tmp_path / "fashion-mnist")
    write_lines(tmp_path / "stackoverflow_users.jsonl", [{"user": "a", "text": "b"}])
    (tmp_path / "tiny_imagenet100.npz").write_bytes(b"nothing")
    told = survey(str(tmp_path))
    for line in (
        f"  leaf           {tmp_path / 'femnist'}: 3 samples, 2 users, 62 classes",
        f"  emnist         {tmp_path / 'emnist_byclass.npz'}: 6 + 2 samples, 3 classes, stands in",
        f"  mnist_writers  missing: put mnist_writers.npz (a stand-in with digits only) into {tmp_path}.",
        f"  batches  {tmp_path / 'cifar-10-batches-py'}: 15 + 3 samples, 10 classes",
        f"  stackoverflow  {tmp_path / 'stackoverflow_users.jsonl'}: 1 samples, 1 users",
        f"  idx  {tmp_path / 'fashion-mnist'}: 4 + 2 samples, 10 classes",
    ):
        assert line in told.splitlines()
    assert f"{tmp_path / 'tiny_imagenet100.npz'} cannot be read as a packed npz file" in told
    assert told.splitlines()[0] == f"Data in {tmp_path}"
    monkeypatch.setenv("FEDGMR_DATA", str(tmp_path))
    assert survey(None) == told
    monkeypatch.delenv("FEDGMR_DATA")
    assert survey(None).startswith("FEDGMR_DATA is not set: set it to the directory with the data.\n")
    assert "put cifar10.npz (the same images after JPEG compression) there." in survey(None)


def test_downloads_that_are_not_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGMR_DATA", raising=False)
    with pytest.raises(
        ValueError,
        match="--download is 'femnist', which is not public at a fixed address: give cifar10 or fashion_mnist",
    ):
        download("femnist", str(tmp_path))
    with pytest.raises(ValueError, match="FEDGMR_DATA is not set: set it, or --root, to the directory for the data"):
        download("cifar10", None)
    with pytest.raises(ValueError, match=r"--root is '.*nowhere', which is no directory: create it"):
        download("cifar10", str(tmp_path / "nowhere"))


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    assert main(["data", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == survey(str(tmp_path)) + "\n"
    assert main(["data", "--root", str(tmp_path), "--download", "fashion"]) == 2
    assert capsys.readouterr().err == (
        "fedgmr: --download is 'fashion', which is not public at a fixed address: "
        "give cifar10 or fashion_mnist or shakespeare.\n"
    )


@real
@pytest.mark.parametrize(
    ("name", "source", "train", "test", "classes", "users"),
    [
        ("femnist", "emnist", (100_000, 1, 28, 28), 16_323, 62, None),
        ("femnist", "mnist_writers", (60_000, 1, 28, 28), 10_000, 10, 539),
        ("cifar10", "packed", (50_000, 3, 32, 32), 10_000, 10, None),
        ("imagenet100", "tiny", (25_000, 3, 64, 64), 5_000, 100, None),
    ],
)
def test_real_images(
    name: str, source: str, train: tuple[int, ...], test: int, classes: int, users: int | None
) -> None:
    root = Path(os.environ["FEDGMR_DATA"])
    task = named_task(name, {"source": source}, seed=0)
    assert (tuple(task.train.inputs.shape), len(task.test.inputs)) == (train, test), root
    assert task.train.targets.unique().tolist() == task.test.targets.unique().tolist() == list(range(classes))
    assert (None if task.users is None else len(task.users.unique())) == users
    assert task.stand_in
    prepared = task.inputs(task.train.inputs[:2000])
    spread = 1.0 if name != "femnist" else 0.33
    assert float(prepared.std()) == pytest.approx(spread, rel=0.25)
    assert prepared.dtype == torch.float32
