"""Rewrite kept runs for this release: their recipes to its schema version, their directories' names to the new keys.

`python tools/rewrite_results.py [DIR ...]` changes every run below the directories (`results` by default) that an
earlier release wrote, and prints one line for each. Metrics and summaries stay as they are. A run that is up to date is
left alone, and an interrupted rewrite is finished by the same command: each recipe is replaced whole, then its
directory is renamed. A directory whose name does not end in a key keeps its name.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgmr.experiments.sweep.keys import recipe_key
from fedgmr.experiments.sweep.plan import run_name
from fedgmr.files import RECIPE, write_atomic
from fedgmr.recipe import SCHEMA_VERSION, recipe_from
from fedgmr.settings.text import dump, read_mapping

# Built-in tasks whose models have no batch norm, so nothing about it matters.
_NO_BATCH_NORM = ("mnist5k", "fashion_mnist", "femnist", "cifar10", "stackoverflow")
_KEY = re.compile(r"-[0-9a-f]{12}$")


def rewrite_runs(store: Path) -> Iterator[str]:
    """Rewrite every run below a directory; yields a line about each that changed.

    Raises:
        ValueError: a recipe cannot be rewritten, or another directory has the new name already.
    """
    # The deepest first, so that no directory is renamed before those below it.
    for path in sorted(store.rglob(RECIPE), key=lambda path: (-len(path.parts), path)):
        directory = path.parent
        before = read_mapping(path)
        data = upgrade(before)
        try:
            recipe = recipe_from(data)
        except ValueError as error:
            raise ValueError(f"{path} cannot be rewritten: {error}") from error
        target = directory
        if _KEY.search(directory.name):
            target = directory.with_name(run_name(recipe, recipe_key(recipe)))
        if target != directory and target.exists():
            raise ValueError(f"{directory} cannot be renamed because {target} is there: remove one of them.")
        if data != before:
            write_atomic(path, dump(data))
        if target != directory:
            directory.rename(target)
        if data != before or target != directory:
            yield f"{directory} -> {target.name}"


def upgrade(data: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's plain data as this release's version has it."""
    data = json.loads(json.dumps(data))  # a copy of all that is nested
    for version in range(data.get("schema_version", SCHEMA_VERSION), SCHEMA_VERSION):
        _STEPS[version](data)
        data["schema_version"] = version + 1
    return data


def _without_fused(data: dict[str, Any]) -> None:
    data.get("execution", {}).pop("fused", None)


def _with_norms_apart(data: dict[str, Any]) -> None:
    """The test's half of `method.local.norm` became `evaluation.norm`."""
    local = data.get("method", {}).get("local", {})
    before = local.get("norm", "running")
    if "norm" in local:
        local["norm"] = "tracked" if before == "running" else "batch"
    if data["task"]["name"] not in _NO_BATCH_NORM:
        data.setdefault("evaluation", {})["norm"] = "rebuilt" if before == "static" else before


_STEPS = {1: _without_fused, 2: _with_norms_apart}  # by version: what makes it the next one


def main(arguments: Sequence[str]) -> int:
    """Rewrite the runs below the given directories; returns the exit code."""
    count = 0
    try:
        for store in arguments or ["results"]:
            for line in rewrite_runs(Path(store)):
                print(line)
                count += 1
    except (ValueError, OSError) as error:
        print(f"rewrite_results: {error}", file=sys.stderr)
        return 2
    print(f"{count} run{'' if count == 1 else 's'} rewritten.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
