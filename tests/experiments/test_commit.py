"""Which commit a run says it came from."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgmr.experiments import rundir


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(rundir.COMMIT_VARIABLE, raising=False)
    rundir.source_commit.cache_clear()
    yield
    rundir.source_commit.cache_clear()


def place(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """As if the package lay in `root`."""
    monkeypatch.setattr(rundir, "__file__", str(root / "fedgmr" / "experiments" / "rundir.py"))


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    return subprocess.run(["git", "-C", str(root), *who, *words], capture_output=True, text=True, check=True).stdout


def test_of_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    git(tmp_path, "tag", "-a", "v1", "-m", "a tag is no commit")
    place(monkeypatch, tmp_path)
    assert rundir.source_commit() == head
    (tmp_path / "file").write_text("two")
    assert rundir.source_commit() == head  # asked once per process: it is what was imported
    rundir.source_commit.cache_clear()
    assert rundir.source_commit() == f"{head}-dirty"


def test_none_outside_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")  # somebody else's, above the package
    place(monkeypatch, tmp_path / "lib" / "site-packages")
    assert rundir.source_commit() is None


def test_as_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, tmp_path)
    monkeypatch.setenv(rundir.COMMIT_VARIABLE, "abc")
    assert rundir.source_commit() == "abc"
