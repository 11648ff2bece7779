"""A run written by hand: three rows of two clients, whose numbers the tests know."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]
RECIPE = """\
name: digits
seed: {seed}
seconds: 300.0
method:
  name: fedgmr
  title: {title}
  ladder: [0.5, 1.0]
fleet:
  links: [{{down: 1.0, up: 0.5}}, {{down: 8.0, up: 4.0}}]
"""


def row(number: int, **others: Any) -> dict[str, Any]:
    """Row 0, 1, 2, ... at 0, 60, 120, ... virtual seconds, each after two seconds of the host."""
    return {
        "seconds": 60.0 * number,
        "tick": 5 * number,
        "accuracy": [0.1, 0.4, 0.7][number % 3],
        "loss": 2.0 - number / 4,
        "density": [0.5, 1.0],
        "level": [0, 1],
        "staleness": [None, 2] if number else [None, None],
        "updates": [number, 3 * number],
        "bytes_down": [1000 * number, 4000 * number],
        "bytes_up": [500 * number, 2000 * number],
        "bytes_server": 4500 * number,
        "in_flight": 2,
        "wall": 2.0 * number,
        **others,
    }


@pytest.fixture
def write_rows() -> Callable[..., None]:
    """Sets or adds to the rows of a run."""

    def write(run: Path, rows: Sequence[dict[str, Any]], *, mode: str = "w") -> None:
        with (run / "metrics.jsonl").open(mode) as file:
            file.write("".join(json.dumps(each) + "\n" for each in rows))

    return write


@pytest.fixture
def make_run(write_rows: Any) -> Callable[..., Path]:
    """Makes a run directory."""

    def make(path: Path, rows: int = 3, *, seed: int = 0, title: str = "FedGMR") -> Path:
        path.mkdir(parents=True)
        (path / "recipe.yaml").write_text(RECIPE.format(seed=seed, title=title))
        write_rows(path, [row(number) for number in range(rows)])
        return path

    return make
