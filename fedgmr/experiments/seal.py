"""The seal of a run directory: digests that bind recipe, rows, checkpoints and summary to each other.

Every checkpoint and the summary carry a digest of the recipe and of the rows before them, so a file that was edited,
cut or taken from another run is noticed before anything is computed or tabulated. Files of releases without digests are
taken as they are. A digest is no signature: it shows mistakes, not forgeries.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedgmr.experiments.checkpoint import checkpoints_of, read_checkpoint
from fedgmr.files import METRICS, RECIPE, SUMMARY, digest, digest_file
from fedgmr.reporting.recorder import Recorder, digest_rows, read_rows
from fedgmr.reporting.records import Run, read_run
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.text import read_mapping

# What a resume may change: how the run is called, where and how it is computed, how often it is saved.
_FREE = ("name", "about", "device", "checkpoint", "execution")
_NUMBER_FORMATS = ("tf32", "autocast")  # of `execution`, but they count


def recipe_digest(directory: Path) -> str:
    """Checksum of the recipe in a run directory, without what a resume may change."""
    try:
        return digest_recipe(read_mapping(directory / RECIPE))
    except TypeError as error:
        raise SettingError(f"{directory / RECIPE} is no recipe ({error}): restore it.") from error


def digest_recipe(data: Mapping[str, Any]) -> str:
    """Checksum of a resolved recipe's plain data, without what a resume may change."""
    bound = {key: value for key, value in data.items() if key not in _FREE}
    execution, task = data.get("execution"), data.get("task")
    if isinstance(execution, Mapping):
        bound["execution"] = {key: execution[key] for key in _NUMBER_FORMATS if key in execution}
    if isinstance(task, Mapping) and isinstance(options := task.get("options"), Mapping):
        # Where the files are, not what they hold.
        bound["task"] = {**task, "options": {key: value for key, value in options.items() if key != "root"}}
    return digest(bound)


def checkpoint_seal(recipe: str | None, recorder: Recorder) -> dict[str, Any]:
    """What a checkpoint says about its run: the recipe's digest, the rows' digest, the threads it is computed with."""
    return {"recipe_digest": recipe, "rows_digest": recorder.digest, "threads": torch.get_num_threads()}


def check_checkpoint(file: Path, state: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that does not belong to the recipe and rows beside it; warn of another number of threads.

    Raises:
        SettingError: one sentence that names the file.
    """
    directory, recorded = file.parents[1], state["recorded"]
    if state.get("recipe_digest") not in (None, recipe_digest(directory)):
        raise SettingError(
            f"{file} was not written with the settings in {directory / RECIPE}: restore the recipe, or remove the "
            "checkpoint if it is of another run."
        )
    metrics = directory / METRICS
    rows = read_rows(metrics, recorded) if metrics.is_file() else []
    if len(rows) < recorded:
        raise SettingError(f"{metrics} has {len(rows)} rows, {file} {recorded}: the file was cut; start the run again.")
    if state.get("rows_digest") not in (None, digest_rows(rows)):
        raise SettingError(
            f"{metrics} does not begin with the {recorded} rows that {file} was written after: restore it, or start "
            "the run again."
        )


def warn_of_threads(directory: Path, state: Mapping[str, Any]) -> None:
    """Warn where a run goes on with another number of threads; on a CPU that number decides how sums are rounded."""
    before, now = state.get("threads"), torch.get_num_threads()
    on_cpu = not str(read_mapping(directory / RECIPE).get("device")).startswith("cuda")
    if before not in (None, now) and on_cpu:
        warnings.warn(
            f"The run in {directory} was computed with {before} threads and goes on with {now}, so its results may "
            f"differ from those of an uninterrupted run: set execution.threads to {before} in its recipe to keep them.",
            stacklevel=2,
        )


def read_sealed_run(directory: Path) -> Run:
    """Read a run; ValueError naming the file where its recipe or rows are not those of its summary."""
    run = read_run(directory)
    if run.summary.get("recipe_digest") not in (None, recipe_digest(directory)):
        raise SettingError(
            f"{directory / RECIPE} is not the recipe that {SUMMARY} beside it was written for: restore it or run the "
            "recipe anew."
        )
    return run


def check_models(directory: Path, summary: Mapping[str, Any]) -> list[str]:
    """Refuse final models that are not those of the summary; returns the names of files that are gone."""
    gone = []
    for name, sum_of_bytes in summary.get("models", {}).items():
        path = directory / Path(name).name
        if not path.is_file():
            gone.append(path.name)
        elif digest_file(path) != sum_of_bytes:
            raise SettingError(
                f"{path} is not the file that {SUMMARY} beside it was written for: restore it, or run the recipe anew."
            )
    return gone


def verify_run(directory: Path) -> str:
    """Check all files of a run against each other; returns what was found in a few words, ValueError on a mismatch."""
    files = checkpoints_of(directory)
    for file in files:
        check_checkpoint(file, read_checkpoint(file)[1])
    if not (directory / METRICS).is_file() and not (directory / SUMMARY).exists():
        recipe_digest(directory)
        return "not begun"
    run = read_sealed_run(directory)
    counts = {"row": len(run.history.seconds), "checkpoint": len(files)}
    held = [f"{count} {word}{'s' if count > 1 else ''}" for word, count in counts.items() if count]
    without = check_models(directory, run.summary)
    if run.summary and "recipe_digest" not in run.summary:
        without.append("digests")
    return f"{run.status}, {', '.join([*held, *(f'without {name}' for name in without)])}"
