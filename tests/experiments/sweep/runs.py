"""Small recipes, and what a run left that a repetition must leave too."""

import json
from pathlib import Path
from typing import Any

from e2e.recipes import recipe

from fedgmr.recipe import Recipe, recipe_from


def small(method: str = "fedgmr", *overrides: str, **sections: Any) -> Recipe:
    """A run of a fraction of a second."""
    return recipe_from(recipe("dense", method, **{"seconds": 120.0, **sections}), overrides)


def left(run: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Rows but for the wall clock, and the model."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{**row, "wall": 0} for row in rows], (run / "model.safetensors").read_bytes()
