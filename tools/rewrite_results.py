"""Rewrite kept runs for this release: their recipes to its schema version, their directories' names to the new keys.

`python tools/rewrite_results.py [DIR ...]` changes every run below the directories (`results` by default) that an
earlier release wrote, and prints one line for each. Metrics and summaries stay as they are. A run that is up to date is
left alone, and an interrupted rewrite is finished by the same command: each recipe is replaced whole, then its
directory is renamed. A directory whose name does not end in a key keeps its name.
"""

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

# By the version that still has them: the keys that the next version dropped.
DROPPED = {1: ("execution.fused",)}
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
    version = data.get("schema_version", SCHEMA_VERSION)
    while version in DROPPED:
        for key in DROPPED[version]:
            section, _, name = key.partition(".")
            if name in data.get(section, {}):
                data = {**data, section: {key: value for key, value in data[section].items() if key != name}}
        version += 1
        data = {**data, "schema_version": version}
    return data


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
