"""Run directories with given accuracies, as runs of the paper's recipes leave them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedgmr.experiments.assembly import resolve_times
from fedgmr.paper.grid import Setting, paper_layout, recipe_for
from fedgmr.paper.numbers import Paper
from fedgmr.recipe import Recipe
from fedgmr.settings.schema import plain
from fedgmr.settings.text import dump
from fedgmr.submodels.layout import Layout

CLIENTS = 10
HIGH = Setting(task="femnist", heterogeneity="high", split="noniid")


@pytest.fixture(scope="session")
def paper() -> Paper:
    return Paper.read()


@cache
def layout(task: str) -> Layout:
    return paper_layout(task)


def evaluation(seconds: float, accuracy: float) -> dict[str, Any]:
    """One line of metrics.jsonl, one merge per ten seconds."""
    each = [0] * CLIENTS
    return {
        "seconds": seconds,
        "tick": int(seconds // 10),
        "accuracy": accuracy,
        "loss": 1.0,
        "density": [1.0] * CLIENTS,
        "level": each,
        "staleness": each,
        "updates": each,
        "bytes_down": each,
        "bytes_up": each,
        "bytes_server": 0,
        "in_flight": 0,
        "wall": 0.0,
    }


def write_run(
    directory: Path,
    accuracies: Sequence[float],
    *,
    setting: Setting = HIGH,
    variant: str = "fedgmr",
    protocol: str = "fair",
    seed: int = 0,
    short: bool = False,
    overrides: Sequence[str] = (),
    padded: Sequence[float] | None = None,
    recipe: Recipe | None = None,
    **summary: Any,
) -> Path:
    """A finished run, its evaluations evenly over the time budget, the first at 0 and the last at its end.

    `padded`: the accuracies of the padded model; the run then has views, and by default the padded one is best. A
    `recipe` takes the place of what else describes the run.
    """
    recipe = recipe or recipe_for(setting, variant, protocol=protocol, seed=seed, short=short, overrides=overrides)
    recipe = replace(resolve_times(recipe, lambda: layout(setting.task)), device="cuda")
    step = recipe.seconds / (len(accuracies) - 1)
    lines = [evaluation(number * step, accuracy) for number, accuracy in enumerate(accuracies)]
    if padded is not None:
        for line, accuracy in zip(lines, padded, strict=True):
            line["views"] = {"padded": {"accuracy": accuracy, "loss": 1.0}}
        views = {"merged": {"validation": 0.25}, "padded": {"validation": 0.75}}
        summary = {"views": views, "best_view": "padded", "metric": "accuracy", "decides_on_test": False} | summary
    fields = {
        "schema_version": 1,
        "status": "finished",
        "method": recipe.method.name,
        "method_title": recipe.method.title,
        "task": recipe.task.name,
        "stand_in": None,
        "short": recipe.short,
        "fleet": recipe.fleet.name,
        "seed": recipe.seed,
        "seconds": recipe.seconds,
        "wall_seconds": 60.0,
        "device": "NVIDIA H200",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        **summary,
    }
    directory.mkdir(parents=True)
    (directory / "recipe.yaml").write_text(dump(plain(recipe)))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if fields["status"] != "unfinished":
        (directory / "summary.json").write_text(json.dumps(fields))
    return directory
