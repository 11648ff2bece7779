"""One run: from a recipe or the arguments of `simulate` to a result, with records and checkpoints if wanted.

`simulate` and `resume` are the Python entry points; `run_recipe` and `resume_run` are what the command line calls.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Never

from fedgmr.experiments.arguments import directory_of, recipe_of, refuse_unknown, watched
from fedgmr.experiments.assembly import Assembly, assemble, given_task, make_task, resolve
from fedgmr.experiments.checkpoint import load_checkpoint
from fedgmr.experiments.inspection import width_remarks
from fedgmr.experiments.progress import RunInProgress
from fedgmr.experiments.prolonging import budget, prolong
from fedgmr.experiments.result import Result
from fedgmr.experiments.rundir import create_run, forget_end, locked, open_run, read_recipe, reopened, resolved_text
from fedgmr.experiments.seal import check_checkpoint, warn_of_threads
from fedgmr.experiments.views import without_early_tests
from fedgmr.experiments.watching import Watchers, tell_stage
from fedgmr.files import RECIPE
from fedgmr.fleets.links import Link
from fedgmr.fleets.network import NetworkSettings
from fedgmr.fleets.presets import FleetSettings
from fedgmr.methods import Method
from fedgmr.recipe import CheckpointSettings, EvaluationSettings, Recipe
from fedgmr.reporting.recorder import Recorder
from fedgmr.server.participation import Participation
from fedgmr.tasks.partition import Partition
from fedgmr.tasks.task import Task
from fedgmr.training.execution import ExecutionSettings
from fedgmr.training.schedules import TrainingSettings

_READING, _ASSEMBLING = "reading the data", "making the model"  # stages before the first tick


def simulate(
    task: Task | str,
    *,
    method: Method | str = "fedgmr",
    fleet: FleetSettings | Mapping[str, Any] | Sequence[Link | Mapping[str, Any]] | str = "high",
    seconds: float,
    seed: int = 0,
    output: str | Path | None = None,
    watcher: Watchers = None,
    progress: bool = True,
    name: str | None = None,
    partition: Partition | Mapping[str, Any] | str | None = None,
    network: NetworkSettings | Mapping[str, Any] | None = None,
    training: TrainingSettings | Mapping[str, Any] | None = None,
    participation: Participation | Mapping[str, Any] | None = None,
    evaluation: EvaluationSettings | Mapping[str, Any] | None = None,
    checkpoint: CheckpointSettings | Mapping[str, Any] | None = None,
    device: str | None = None,
    execution: ExecutionSettings | Mapping[str, Any] | None = None,
    **unknown: Never,
) -> Result:
    """Simulate a federated run and return its history and final model.

    Args:
        task: what is learned: a Task, the name of a built-in one, or an import path.
        method: a name (see `fedgmr list`), an import path, or a composed Method.
        fleet: a name ("high", "lte", ...), a FleetSettings, or one Link per client; the last two also as plain data.
        seconds: time budget in virtual seconds.
        seed: decides every random draw.
        output: a new run directory for records and checkpoints; None keeps all in memory.
        watcher: a Watcher or several, told how the run goes; each may end it.
        progress: whether a display shows how the run goes; in a notebook or a file these are plain lines.
        name: of the run, for titles and directories; None: the method's.
        partition: how samples are dealt to clients, None: by user where the task knows users, else iid; this and the
            following as objects or plain data, None: the default.
        network: the server's uplink, noise, number formats, the time that training takes.
        training: learning rate, its schedule, the optimiser, batch size, steps.
        participation: how many of the free clients get a task.
        evaluation: when and on which samples models are tested; early stopping.
        checkpoint: how often the state is saved into `output`.
        device: "auto", "cpu", "cuda" or "cuda:N".
        execution: how tasks are computed.
        **unknown: nothing; a misspelt argument is refused with the right one.

    Raises:
        SettingError: an argument cannot be used.
        Diverged: training diverged; what was recorded before stays in `output`.
    """
    sections: dict[str, Any] = {"name": name, "partition": partition, "network": network, "training": training}
    sections |= {"participation": participation, "evaluation": evaluation, "checkpoint": checkpoint}
    sections |= {"device": device, "execution": execution}
    refuse_unknown(unknown, simulate)
    recipe = recipe_of(task, method, fleet, {"seconds": seconds, "seed": seed}, sections)
    directory = None if output is None else directory_of(output, "output")
    with watched(watcher, progress, recipe.label, recipe.seconds) as watchers:
        return run_recipe(recipe, directory, watchers, task=None if isinstance(task, str) else task)


def run_recipe(recipe: Recipe, output: Path | None, watcher: Watchers = None, *, task: Task | None = None) -> Result:
    """Run a recipe from the beginning; `task` in place of the one that the recipe names."""
    with recipe.execution.own_modes():
        if task is None:
            tell_stage(watcher, _READING)
            task = make_task(recipe)
        tell_stage(watcher, _ASSEMBLING)
        return run_assembly(assemble(resolve(recipe, task), task), output, watcher)


def resume(
    directory: str | Path,
    *,
    seconds: float | None = None,
    task: Task | None = None,
    watcher: Watchers = None,
    progress: bool = True,
    trust: Iterable[str] = (),
) -> Result:
    """Continue an interrupted run, or prolong one, to the result of an uninterrupted run.

    Args:
        directory: the run directory.
        seconds: a longer time budget, of a finished run too; None: the one that it has.
        task: the Task object of a run whose recipe does not name it by an import path.
        watcher: as for `simulate`.
        progress: as for `simulate`.
        trust: packages or import paths that its recipe may import, beside those of FEDGMR_TRUST.

    Raises:
        SettingError: the run is finished, or a longer one would have gone otherwise from its beginning.
    """
    place = directory_of(directory, "directory")
    recipe = read_recipe(place, trust)
    with watched(watcher, progress, recipe.label, budget(place, recipe, seconds)) as watchers:
        return resume_run(place, watchers, trust=trust, seconds=seconds, task=task)


def resume_run(
    directory: Path,
    watcher: Watchers = None,
    *,
    trust: Iterable[str] = (),
    seconds: float | None = None,
    task: Task | None = None,
) -> Result:
    """Continue a run from its newest valid checkpoint (from the beginning if it had none yet), as `resume` says."""
    opened = open_run if seconds is None else read_recipe
    with reopened(directory, trust, opened=opened) as recipe, recipe.execution.own_modes():
        tell_stage(watcher, _READING)
        task = given_task(recipe, task)
        if seconds is not None:
            recipe = prolong(directory, recipe, seconds)
        tell_stage(watcher, _ASSEMBLING)
        return run_assembly(assemble(resolve(recipe, task), task), directory, watcher, resume=True)


def run_assembly(
    assembly: Assembly[Any],
    directory: Path | None,
    watcher: Watchers,
    *,
    resume: bool = False,
) -> Result:
    """Run newly made objects to the time budget, in a new run directory or (None) in memory.

    With `resume` it continues the run in `directory`, which the caller has locked.
    """
    if resume:
        assert directory is not None
        recorded = load_checkpoint(directory, assembly.server, assembly.fleet, _taken_up)
        forget_end(directory)  # of a run that was stopped or diverged
        recorder = Recorder(directory)
        # Of a prolonging that was killed there may be tests that are early in the longer run.
        recorder.cut_back(recorded or 0, partial(without_early_tests, recipe=assembly.recipe))
        text = (directory / RECIPE).read_text(encoding="utf-8")
        return RunInProgress(assembly, recorder, directory, watcher, text).finish(resumed=recorded is not None)
    try:
        text = resolved_text(assembly.recipe, width_remarks(assembly.recipe.method, assembly.server))
    except TypeError:  # a part that no file can hold, such as a function
        if directory is not None:
            raise
        text = ""
    if directory is None:
        return RunInProgress(assembly, Recorder(), None, watcher, text).finish(resumed=False)
    with locked(directory):
        create_run(directory, text)
        return RunInProgress(assembly, Recorder(directory), directory, watcher, text).finish(resumed=False)


def _taken_up(file: Path, state: Mapping[str, Any]) -> None:
    """Check a checkpoint before a run goes on from it."""
    check_checkpoint(file, state)
    warn_of_threads(file.parents[1], state)
