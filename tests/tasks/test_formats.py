"""Public formats, on small files written here: what is read, and what is said about bad ones."""

import gzip
import hashlib
import json
import lzma
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgmr.tasks import named_task
from fedgmr.tasks.formats import cifar, idx
from fedgmr.tasks.formats.arrays import Counts
from fedgmr.tasks.formats.cifar import CifarBatches
from fedgmr.tasks.formats.download import Download
from fedgmr.tasks.formats.idx import IdxFolder
from fedgmr.tasks.formats.leaf import LeafFolder
from fedgmr.tasks.formats.lines import TextLines

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def write_leaf(path: Path, users: dict[str, list[int]], value: float = 0.2) -> None:
    """Every image of one grey value; one image per label."""
    data = {user: {"x": [[value] * 784 for _ in labels], "y": labels} for user, labels in users.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": data}))


def write_batches(folder: Path, images: int = 3) -> None:
    """Batch b is full of the byte b, its labels are 0, 1, 2, ...; the published pickles are of protocol 2."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(BATCHES):
        data = np.full((images, 3072), number, np.uint8)
        data[:, 1024:2048] += 100  # the green plane
        content = {b"data": data, b"labels": list(range(images)), b"batch_label": name.encode()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def write_idx(folder: Path, *, images: int = 4, packed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", images), ("t10k", 2)):
        pixels = np.arange(count * 784).astype(np.uint8).tobytes()
        contents = {
            f"{part}-images-idx3-ubyte": struct.pack(">4I", 0x803, count, 28, 28) + pixels,
            f"{part}-labels-idx1-ubyte": struct.pack(">2I", 0x801, count) + bytes(range(count)),
        }
        for name, content in contents.items():
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)


def write_lines(path: Path, records: list[Any]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)
    return path


def test_leaf_keeps_its_split_and_its_writers(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train" / "a.json", {"f01": [3, 61], "f02": [0]})
    write_leaf(tmp_path / "train" / "b.json", {"f03": [7, 7, 7], "f04": []})
    write_leaf(tmp_path / "test" / "a.json", {"f01": [5]}, value=1.0)
    data = LeafFolder().read(tmp_path, seed=0)
    assert data.train[0].shape == (6, 1, 28, 28)
    assert data.train[1].tolist() == [3, 61, 0, 7, 7, 7]
    assert data.users is not None
    assert data.users.tolist() == [0, 0, 1, 2, 2, 2]
    assert set(data.train[0].ravel()) == {204}  # (1 - 0.2) · 255: ink is bright
    assert set(data.test[0].ravel()) == {0}  # white paper
    assert str(LeafFolder().count(tmp_path)) == "6 + 1 samples, 4 users, 62 classes"


def test_leaf_without_a_split_gives_a_tenth_of_every_writer_to_the_test(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all.json", {"a": list(range(30)), "b": [1, 2], "c": [9]})
    first, again, other = (LeafFolder().read(tmp_path, seed) for seed in (0, 0, 1))
    assert first.users is not None
    assert np.bincount(first.users).tolist() == [27, 1, 1]
    assert sorted([*first.train[1], *first.test[1]]) == sorted([*range(30), 1, 2, 9])
    assert first.test[1].tolist() == again.test[1].tolist() != other.test[1].tolist()
    assert LeafFolder().count(tmp_path) == Counts(train=33, users=3, classes=62)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"users": ["a"], "user_data": {"a": {"x": [', r"a\.json cannot be read as JSON \(.*\): get a complete copy"),
        ("[]", r"a\.json has no users and user_data: write \{'users'"),
        ('{"users": ["a"], "user_data": {}}', r"a\.json has no x and y for the user 'a'"),
        (
            '{"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [1]}}}',
            "user 'a' that are not 784 numbers from 0 to",
        ),
        (
            '{"users": ["a"], "user_data": {"a": {"x": [["k"]], "y": [1]}}}',
            r"a\.json cannot be read as pixels of the us",
        ),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[2] * 784], "y": [1]}}}), "784 numbers from 0 to 1"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1] * 784], "y": [62]}}}), "label 62 at sample 0: lab"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1] * 784], "y": [1, 2]}}}), "1 images and 2 labels"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1] * 784], "y": ["1"]}}}), "are no whole numbers"),
        (
            json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1] * 784] * 2, "y": [[1], [1, 2]]}}}),
            r"a\.json cannot be read as labels \(.*inhomogeneous.*\): get a complete copy",
        ),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[1] * 784], "y": []}}}), "1 images and 0 labels"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [], "y": [1]}}}), "user 'a' that are not 784 numbers"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[NaN]], "y": [1]}}}', "not 784 numbers"),
        ('{"users": ["a"], "user_data": []}', r"a\.json has no users and user_data"),
        ('{"users": 3, "user_data": {}}', r"a\.json has no users and user_data"),
        ('{"users": [["a"]], "user_data": {}}', r"no x and y for the user \['a'\]"),
        ('{"users": ["a"], "user_data": {"a": {"x": 1, "y": 2}}}', "no x and y for the user 'a'"),
        ('{"users": [], "user_data": {}}', "has no samples in its JSON files"),
    ],
)
def test_bad_leaf_files(content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=complaint):
        LeafFolder().read(tmp_path, seed=0)


def test_leaf_folders_that_lack_something(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no JSON files: put LEAF's there"):
        LeafFolder().read(tmp_path, seed=0)
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match="has only one of the folders train and test"):
        LeafFolder().read(tmp_path, seed=0)


def test_cifar_batches(tmp_path: Path) -> None:
    write_batches(tmp_path)
    data = CifarBatches().read(tmp_path)
    assert data.train[0].shape == (15, 3, 32, 32)
    assert data.train[0][:, 0, 5, 5].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert data.train[0][3, :, 31, 0].tolist() == [1, 101, 1]
    assert data.train[1].tolist() == [0, 1, 2] * 5
    assert data.test[0][:, 2, 0, 0].tolist() == [5] * 3
    assert str(CifarBatches().count(tmp_path)) == "15 + 3 samples, 10 classes"


class Payload:
    """What a pickle from a stranger may hold."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must never be printed",))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({b"labels": [0, 1, 10]}, "data_batch_1 has the label 10 at sample 2: labels go from 0 to 9"),
        ({b"labels": [0, 1]}, "data_batch_1 has 3 images and 2 labels"),
        (
            {b"data": np.zeros((3, 3072))},
            r"data_batch_1 has data of float64 \(3, 3072\): it must be uint8 \[images, 3072",
        ),
        ({b"data": np.zeros((3, 7), np.uint8)}, r"has data of uint8 \(3, 7\)"),
        ({b"extra": Payload()}, r"data_batch_1 cannot be read .*asks for __builtin__\.print, which no batch needs"),
    ],
)
def test_bad_cifar_batches(
    changes: dict[str, Any], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_batches(tmp_path)
    content = {b"data": np.zeros((3, 3072), np.uint8), b"labels": [0, 1, 2]} | changes
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=complaint):
        CifarBatches().read(tmp_path)
    assert capsys.readouterr().out == ""


def test_truncated_and_missing_cifar_batches(tmp_path: Path) -> None:
    write_batches(tmp_path)
    whole = (tmp_path / "data_batch_3").read_bytes()
    for content in (whole[:-400], pickle.dumps([1, 2]), pickle.dumps({b"labels": []}), b""):
        (tmp_path / "data_batch_3").write_bytes(content)
        with pytest.raises(ValueError, match=r"data_batch_3 cannot be read as a CIFAR-10 batch \(.+\): get a complete"):
            CifarBatches().read(tmp_path)
    (tmp_path / "data_batch_3").unlink()
    with pytest.raises(ValueError, match=r"data_batch_3 is missing: put all of data_batch_1 to 5"):
        CifarBatches().read(tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(packed: bool, tmp_path: Path) -> None:
    write_idx(tmp_path / "fashion-mnist", packed=packed)
    task = named_task("fashion_mnist", {"root": str(tmp_path)}, seed=0)
    assert task.train.inputs.shape == (4, 1, 28, 28)
    assert task.train.targets.tolist() == [0, 1, 2, 3]
    assert task.train.inputs[1, 0, 0, :3].tolist() == [784 % 256, 785 % 256, 786 % 256]
    assert task.test.targets.tolist() == [0, 1]
    assert task.inputs(task.train.inputs)[0, 0, 1, 23].item() == pytest.approx(0.2)
    assert task.layout().size == 6_603_710 - 52 * 2049  # ten classes rather than 62
    assert str(IdxFolder().count(tmp_path / "fashion-mnist")) == "4 + 2 samples, 10 classes"


def test_bad_idx_files(tmp_path: Path) -> None:
    write_idx(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    broken = {
        whole[:-1]: "it has 3135 bytes for 4 x 28 x 28",
        whole[:7]: "unpack",
        b"\1" + whole[1:]: "begins with 0x01",
    }
    for content, reason in broken.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"idx3-ubyte cannot be read as an IDX file \(.*{reason}.*\): get a comp"):
            IdxFolder().read(tmp_path)
    path.write_bytes(whole)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(struct.pack(">2I", 0x801, 4) + bytes([0, 1, 10, 2]))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte has the label 10 at sample 2: labels go from 0 to"):
        IdxFolder().read(tmp_path)
    labels.write_bytes(struct.pack(">2I", 0x801, 3) + bytes(3))
    with pytest.raises(ValueError, match=r"images-idx3-ubyte has 4 images and train-labels-idx1-ubyte 3 labels: get c"):
        IdxFolder().read(tmp_path)
    path.write_bytes(struct.pack(">4I", 0x803, 1, 2, 2) + bytes(4))
    with pytest.raises(ValueError, match=r"has images of \(2, 2\) pixels: they must be 28 x 28"):
        IdxFolder().read(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=r"has neither train-images-idx3-ubyte nor train-images-idx3-ubyte\.gz"):
        IdxFolder().read(tmp_path)
    path.with_suffix(".gz").write_bytes(gzip.compress(whole)[:-50])
    with pytest.raises(ValueError, match=r"ubyte\.gz cannot be read as an IDX file"):
        IdxFolder().read(tmp_path)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.xz"])
def test_lines(suffix: str, tmp_path: Path) -> None:
    records = [{"user": 7, "text": "one", "site": "x"}, {"user": "b", "text": "two é"}, {"user": 7, "text": "three"}]
    path = write_lines(tmp_path / f"t.{suffix}", records)
    assert TextLines().read(path) == {"7": ["one", "three"], "b": ["two é"]}
    assert str(TextLines().count(path)) == "3 samples, 2 users"


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"user": "a", "text": "  "}, r"t\.jsonl, line 2: the user 'a' has no text; remove the line or give it one"),
        ({"user": "a", "text": None}, "line 2: the user 'a' has no text"),
        ({"user": None, "text": "b"}, "line 2: the user is None; give a name or a number"),
        ({"user": "a"}, 'line 2 is no record with user and text: write {"user"'),
        ([1], "line 2 is no record"),
    ],
)
def test_bad_lines(record: Any, complaint: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [{"user": "z", "text": "fine"}, record])
    with pytest.raises(ValueError, match=complaint):
        TextLines().read(path)


def test_truncated_and_empty_lines(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl.xz", [{"user": "z", "text": "fine"}] * 50)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"t\.jsonl\.xz cannot be read as JSON lines \(.+\): get a complete copy"):
        TextLines().read(path)
    with pytest.raises(ValueError, match=r"e\.jsonl is empty: write one line per text"):
        TextLines().read(write_lines(tmp_path / "e.jsonl", []))


def test_downloads_are_checked_and_never_half_there(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "data"
    folder.mkdir()
    source.write_bytes(b"published")
    good = Download(url=source.as_uri(), name="file", md5=hashlib.md5(b"published").hexdigest())
    bad = Download(url=source.as_uri(), name="file", md5="0" * 32)
    with pytest.raises(
        ValueError, match=rf"gave a file with the MD5 checksum {good.md5}, not 000.*put file into .*data"
    ):
        bad.fetch(folder)
    assert list(folder.iterdir()) == []
    assert good.fetch(folder).read_bytes() == b"published"
    source.unlink()
    assert good.fetch(folder) == folder / "file"  # it is there: nothing to download
    with pytest.raises(ValueError, match=r"data/file has the MD5 checksum .*, not 0000.*: delete it and start again"):
        bad.fetch(folder)
    (folder / "file").unlink()
    with pytest.raises(ValueError, match=r"cannot be downloaded \(.*No such file.*\): put file into .*data by hand"):
        good.fetch(folder)
    assert list(folder.iterdir()) == []


def test_download_of_cifar_unpacks_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_batches(tmp_path / "made" / cifar.FOLDER)
    archive, root = tmp_path / "archive.tar.gz", tmp_path / "root"
    root.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / cifar.FOLDER, cifar.FOLDER)
    checksum = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar, "ARCHIVE", Download(url=archive.as_uri(), name="a.tar.gz", md5=checksum))
    assert CifarBatches().read(CifarBatches().download(root)).train[1].tolist() == [0, 1, 2] * 5

    whole, write = (root / cifar.FOLDER / "test_batch").read_bytes(), Path.write_bytes

    def torn(path: Path, content: bytes) -> int:
        write(path, content[:10])
        raise OSError("interrupted")

    monkeypatch.setattr(Path, "write_bytes", torn)
    with pytest.raises(ValueError, match="interrupted"):
        CifarBatches().download(root)
    assert (root / cifar.FOLDER / "data_batch_1").stat().st_size > 10
    assert (root / cifar.FOLDER / "test_batch").read_bytes() == whole


def test_download_of_fashion_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "site")
    checksums = {path.stem: hashlib.md5(path.read_bytes()).hexdigest() for path in (tmp_path / "site").iterdir()}
    assert checksums.keys() == idx._MD5.keys()
    monkeypatch.setattr(idx, "_MD5", checksums)
    monkeypatch.setattr(idx, "_SITE", f"{(tmp_path / 'site').as_uri()}/")
    assert len(IdxFolder().read(IdxFolder().download(tmp_path)).train[1]) == 4
