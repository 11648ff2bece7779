"""Rewrite kept runs for this release: recipes to its schema version, directories' names to the new keys, digests.

`python tools/rewrite_results.py [DIR ...]` changes every run below the directories (`results` by default) that an
earlier release wrote, and prints one line for each. Metrics stay as they are, and a summary gets the digests that bind
recipe and rows to it; where they are there and do not match, the run is refused. A run that is up to date is left
alone, and an interrupted rewrite is finished by the same command: summary and recipe are replaced whole, then the
directory is renamed. A directory whose name does not end in a key keeps its name.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.experiments.rundir import write_summary
from fedgmr.experiments.seal import digest_recipe
from fedgmr.experiments.sweep.keys import recipe_key
from fedgmr.experiments.sweep.plan import run_name
from fedgmr.files import METRICS, RECIPE, SUMMARY, read_json, write_atomic
from fedgmr.recipe import SCHEMA_VERSION, foreign_recipe
from fedgmr.reporting.recorder import digest_rows, read_rows
from fedgmr.reporting.records import digest_summary, read_run
from fedgmr.settings.text import dump, read_mapping

# Built-in tasks whose models have no batch norm, so nothing about it matters.
_NO_BATCH_NORM = ("mnist5k", "fashion_mnist", "femnist", "cifar10", "stackoverflow", "shakespeare")
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
            recipe = foreign_recipe(data)
        except ValueError as error:
            raise ValueError(f"{path} cannot be rewritten: {error}") from error
        target = directory
        if _KEY.search(directory.name):
            target = directory.with_name(run_name(recipe, recipe_key(recipe)))
        if target != directory and target.exists():
            raise ValueError(f"{directory} cannot be renamed because {target} is there: remove one of them.")
        summary = sealed_summary(directory, before, data)
        changed = summary != read_json(directory / SUMMARY)
        if changed:
            write_summary(directory, summary)
        if data != before:
            write_atomic(path, dump(data))
        if target != directory:
            directory.rename(target)
        if changed or data != before or target != directory:
            yield f"{directory} -> {target.name}"


def sealed_summary(directory: Path, before: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run with digests of its rows and of `data`, its recipe from now on; empty if it has none.

    Raises:
        ValueError: the summary has digests, and they are not those of the rows and of the recipe `before`.
    """
    summary = dict(read_run(directory).summary) if (directory / SUMMARY).is_file() else {}
    if not summary:
        return {}
    after = digest_recipe(data)
    if summary.get("recipe_digest") not in (None, digest_recipe(before), after):  # after: a rewrite was interrupted
        raise ValueError(f"{directory / RECIPE} is not the recipe that {SUMMARY} was written for: restore it.")
    rows = read_rows(directory / METRICS)
    summary |= {"recipe_digest": after, "rows": len(rows), "rows_digest": digest_rows(rows)}
    return summary | {"digest": digest_summary(summary)}


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
