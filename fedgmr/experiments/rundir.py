"""The run directory: created, locked while in use, and opened again for a resume.

It holds recipe.yaml (resolved), metrics.jsonl, checkpoints/, summary.json, model.safetensors and the report;
whoever finds it can understand and repeat the run.
"""

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgmr.files import LOCK, MODEL, RECIPE, SUMMARY, VIEWS, read_json, write_atomic
from fedgmr.recipe import Recipe, foreign_recipe
from fedgmr.reporting.records import digest_summary
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.settings.text import dump, read_mapping
from fedgmr.version import __version__

COMMIT_VARIABLE = "FEDGMR_COMMIT"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock and make the directory for it; SettingError where another process has it.

    The lock ends with the process. It comes before any check, so of two new runs in one directory only one begins.
    """
    _refuse_unusable(directory)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    try:  # never through a link, and what is there stays as it is
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise SettingError(f"{path} is a link: remove it, the lock is a file of the run directory.") from None
    if not _taken(file):
        os.close(file)
        raise SettingError(
            f"The run directory {directory} is in use by another process: wait for it or give another output."
        )
    try:
        yield
    finally:
        os.close(file)


def _taken(file: int) -> bool:
    """Take a lock; somebody who only looks whether it is taken, as `fedgmr watch` does, has it for a moment."""
    for pause in (0.05, 0.1, 0.0):
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(pause)
    return False


def resolved_text(recipe: Recipe, remarks: str = "") -> str:
    """The content of a run directory's recipe file; `remarks` are comments below the recipe."""
    return dump(plain(recipe)) + remarks


def create_run(directory: Path, recipe_text: str) -> None:
    """Make a new run directory with its resolved recipe; never touches one that holds a run. The caller locks it."""
    check_unused(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / RECIPE, recipe_text)


def check_unused(directory: Path) -> None:
    """Refuse a directory that holds a run, a file, and a name that is no text."""
    _refuse_unusable(directory)
    if (directory / RECIPE).exists():
        raise SettingError(
            f"output is {str(directory)!r}, which holds a run already: resume it or give another directory."
        )


def _refuse_unusable(directory: Path) -> None:
    try:
        os.fsencode(directory).decode()
    except UnicodeError:  # safetensors would write checkpoints and models there, and not open them
        raise SettingError(
            f"output is {str(directory)!r}, whose name is not UTF-8: rename it or give another."
        ) from None
    if directory.exists() and not directory.is_dir():
        raise SettingError(f"output is {str(directory)!r}, which is a file: give a directory.")


def read_recipe(directory: Path, trust: Iterable[str] = ()) -> Recipe:
    """The recipe of a run directory; SettingError where it is none, or names code that is not trusted."""
    if not (directory / RECIPE).is_file():
        raise SettingError(f"{str(directory)!r} is not a run directory: it has no {RECIPE}.")
    return foreign_recipe(read_mapping(directory / RECIPE), trust)


def open_run(directory: Path, trust: Iterable[str] = ()) -> Recipe:
    """The recipe of a run that can be resumed; `trust` names code that it may import."""
    recipe = read_recipe(directory, trust)
    if read_json(directory / SUMMARY).get("status") == "finished":
        raise SettingError(f"The run in {str(directory)!r} is finished: there is nothing to resume.")
    return recipe


@contextmanager
def reopened(
    directory: Path, trust: Iterable[str] = (), *, opened: Callable[[Path, Iterable[str]], Recipe] = open_run
) -> Iterator[Recipe]:
    """Hold the lock of a run that goes on; gives its recipe, as whoever had the lock has left it."""
    opened(directory, trust)  # a directory that cannot be resumed gets no lock
    with locked(directory):
        yield opened(directory, trust)


def forget_end(directory: Path) -> None:
    """Remove what the end of a run has left, because it goes on: the summary first, which vouches for the models."""
    for name in (SUMMARY, MODEL, VIEWS):
        (directory / name).unlink(missing_ok=True)


def write_summary(directory: Path, summary: dict[str, Any]) -> None:
    """Write summary.json, with a digest of all that it says."""
    whole = {**summary, "digest": digest_summary(summary)}
    write_atomic(directory / SUMMARY, json.dumps(whole, indent=2) + "\n")


def provenance(device: str) -> dict[str, Any]:
    """The device, the commit and the versions that a run is computed with, for its summary."""
    # Flower gives its own processes a token to identify themselves, which is nobody else's business.
    words = ["..." if before == "--token" else word for before, word in pairwise(["", *sys.argv[1:]])]
    versions = {
        "fedgmr": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
        "command": " ".join([Path(sys.argv[0]).name, *words]),
    }
    return {"device": device_name(device), "commit": source_commit(), "versions": versions}


@cache
def source_commit() -> str | None:
    """The commit of the source tree this package runs from, `-dirty` where files differ from it; else None.

    FEDGMR_COMMIT goes first: a copy of the tree on another machine may come without its history.
    """
    if commit := os.environ.get(COMMIT_VARIABLE):
        return commit
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed package may lie below somebody else's repository
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device: str) -> str:
    """The name of a device for people."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
