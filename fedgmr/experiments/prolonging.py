"""A run with more seconds: its files made those of the beginning of a longer run, which a resume then finishes.

The result is that of an uninterrupted longer run, bit for bit, because nothing before the end of a run depends on its
time budget, except what is refused here and what the last evaluations test beside the model. The steps are in an
order in which the run can be resumed after any of them. Read next: `run.py`, `seal.py`.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgmr.experiments.checkpoint import read_checkpoint, valid_checkpoints, write_checkpoint
from fedgmr.experiments.rundir import forget_end, resolved_text
from fedgmr.experiments.seal import check_checkpoint, read_sealed_run, recipe_digest
from fedgmr.experiments.views import without_early_tests
from fedgmr.files import METRICS, RECIPE, UPDATES, write_atomic
from fedgmr.recipe import Recipe
from fedgmr.reporting.recorder import digest_rows
from fedgmr.reporting.records import Run
from fedgmr.settings.refusals import SettingError, show_value

_OPEN = {"recipe_digest": None, "rows_digest": None}  # the seal of a checkpoint that fits every recipe


def prolong(directory: Path, recipe: Recipe, seconds: float) -> Recipe:
    """Give the run in a directory, which the caller has locked, more seconds; returns its new recipe.

    Raises:
        SettingError: it does not have fewer seconds, or a longer run would have gone otherwise from its beginning.
    """
    run = read_sealed_run(directory)
    longer = replace(recipe, seconds=budget(directory, recipe, seconds))
    _check(run, directory, recipe)
    valid = _valid_checkpoints(directory)
    recorded = max((state["recorded"] for _, state in valid), default=0)
    rows = [without_early_tests(row, number, longer) for number, row in enumerate(run.history[:recorded])]
    for file, _ in valid:  # fit both recipes until they are sealed again
        _seal(file, _OPEN)
    forget_end(directory)
    remarks = [line for line in run.recipe_text.splitlines(keepends=True) if line.startswith("#")]
    write_atomic(directory / RECIPE, resolved_text(longer, "".join(remarks)))
    write_atomic(directory / METRICS, "".join(f"{json.dumps(row)}\n" for row in rows))
    for file, state in valid:
        _seal(file, _bound(directory, rows[: state["recorded"]]))
    return longer


def budget(directory: Path, recipe: Recipe, seconds: Any) -> float:
    """The time budget of a run that is to get `seconds`, None for those that it has; SettingError for fewer."""
    if seconds is None:
        return recipe.seconds
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds <= recipe.seconds:
        raise SettingError(
            f"seconds is {show_value(seconds)}, and the run in {str(directory)!r} has {recipe.seconds:g}: give more."
        )
    return float(seconds)


def _check(run: Run, directory: Path, recipe: Recipe) -> None:
    if run.clock == "real" or (directory / UPDATES).exists():
        raise SettingError(f"The run in {str(directory)!r} is a deployed run: only a simulation can be prolonged.")
    if run.status == "diverged":
        raise SettingError(f"The run in {str(directory)!r} diverged: more seconds do not help, change its settings.")
    if run.status == "finished" and run.stopped:
        raise SettingError(
            f"The run in {str(directory)!r} was ended by {run.stopped.get('by')}: more seconds change nothing, start a "
            "run with another rule."
        )
    rule = recipe.method.restoration
    if rule is not None and rule.by_budget:
        raise SettingError(
            f"method.restoration is {rule.kind}, whose moves depend on the time budget: a longer run would have gone "
            "otherwise from its beginning, so start a new one."
        )


def _valid_checkpoints(directory: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Files and states, checked; a damaged one is passed over here as in every resume."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the resume that follows says it
        valid = [(file, state) for file, _, state in valid_checkpoints(directory)]
    for file, state in valid:
        check_checkpoint(file, state)
    return valid


def _bound(directory: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {"recipe_digest": recipe_digest(directory), "rows_digest": digest_rows(rows)}


def _seal(file: Path, seal: Mapping[str, str | None]) -> None:
    """Write a checkpoint again with another seal."""
    tensors, state = read_checkpoint(file)
    write_checkpoint(file, tensors, {**state, **seal})
