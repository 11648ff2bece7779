"""One run for all tests of this folder, and copies of it."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e.recipes import recipe

from fedgmr.experiments.run import run_recipe
from fedgmr.recipe import recipe_from

Rows = list[dict[str, Any]]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FedGMR: nine rows, several views, checkpoints every second tick."""
    path = tmp_path_factory.mktemp("finished") / "first"
    run_recipe(recipe_from(recipe("dense", "fedgmr", seconds=300.0)), path)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(finished, tmp_path / "first")
    return tmp_path / "first"


@pytest.fixture
def read() -> Callable[[Path], Rows]:
    """The rows of a run."""
    return lambda path: [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def write() -> Callable[[Path, Sequence[dict[str, Any]]], None]:
    """Sets the rows of a run."""

    def put(path: Path, rows: Sequence[dict[str, Any]]) -> None:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return put
