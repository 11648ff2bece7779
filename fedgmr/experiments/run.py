"""One run: from a recipe or the arguments of `simulate` to a result, with records and checkpoints if wanted.

`simulate` is the Python entry point; `run_recipe` and `resume_run` are what the command line calls.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgmr.experiments.assembly import Assembly, assemble, make_task, resolve
from fedgmr.experiments.checkpoint import load_checkpoint
from fedgmr.experiments.inspection import width_remarks
from fedgmr.experiments.progress import RunInProgress, Watcher
from fedgmr.experiments.result import Result
from fedgmr.experiments.rundir import create_run, locked, open_run, resolved_text
from fedgmr.experiments.seal import check_checkpoint, warn_of_threads
from fedgmr.files import RECIPE
from fedgmr.fleets.network import Link
from fedgmr.fleets.presets import FleetSettings
from fedgmr.methods import Method, named_method
from fedgmr.recipe import Recipe, TaskSettings
from fedgmr.reporting.recorder import Recorder
from fedgmr.settings.build import build
from fedgmr.tasks.task import Task


def simulate(
    task: Task | str,
    *,
    method: Method | str = "fedgmr",
    fleet: FleetSettings | Mapping[str, Any] | Sequence[Link | Mapping[str, Any]] | str = "high",
    seconds: float,
    seed: int = 0,
    output: str | Path | None = None,
    watcher: Watcher | None = None,
    **settings: Any,
) -> Result:
    """Simulate a federated run and return its history and final model.

    Args:
        task: what is learned: a Task, the name of a built-in one, or an import path.
        method: a name (see `fedgmr list`), an import path, or a composed Method.
        fleet: "high", "medium", "low", a FleetSettings, or one Link per client; the last two also as plain data.
        seconds: time budget in virtual seconds.
        seed: decides every random draw.
        output: a new run directory for records and checkpoints; None keeps all in memory.
        watcher: is told where the run stands after each tick.
        **settings: further sections of a recipe, as objects or plain data: `partition`, `network`, `training`,
            `participation`, `evaluation`, `checkpoint`, `device`, `name`.
    """
    composed = named_method(method) if isinstance(method, str) else method
    if isinstance(fleet, str):
        fleet = build(FleetSettings, {"name": fleet}, path="fleet")
    elif not isinstance(fleet, FleetSettings | Mapping):
        fleet = build(FleetSettings, {"name": "custom", "links": fleet}, path="fleet")
    data = {
        "name": composed.name,
        **settings,
        "seconds": seconds,
        "seed": seed,
        "task": TaskSettings(name=task if isinstance(task, str) else task.name),
        "method": composed,
        "fleet": fleet,
    }
    recipe = build(Recipe, data)
    directory = Path(output) if output is not None else None
    return run_recipe(recipe, directory, watcher, task=None if isinstance(task, str) else task)


def run_recipe(
    recipe: Recipe, output: Path | None, watcher: Watcher | None = None, *, task: Task | None = None
) -> Result:
    """Run a recipe from the beginning; `task` in place of the one that the recipe names."""
    with recipe.execution.own_threads():
        task = task or make_task(recipe)
        return run_assembly(assemble(resolve(recipe, task), task), output, watcher)


def resume_run(directory: Path, watcher: Watcher | None = None, *, trust: Iterable[str] = ()) -> Result:
    """Continue an interrupted run from its newest valid checkpoint (from the beginning if it had none yet).

    `trust` names packages or import paths that its recipe may import, beside those of FEDGMR_TRUST.
    """
    recipe = open_run(directory, trust)
    with locked(directory), recipe.execution.own_threads():
        task = make_task(recipe)
        return run_assembly(assemble(resolve(recipe, task), task), directory, watcher, resume=True)


def run_assembly(
    assembly: Assembly[Any], directory: Path | None, watcher: Watcher | None, *, resume: bool = False
) -> Result:
    """Run newly made objects to the time budget, in a new run directory or (None) in memory.

    With `resume` it continues the run in `directory`, which the caller has locked.
    """
    if resume:
        assert directory is not None
        recorded = load_checkpoint(directory, assembly.server, assembly.fleet, _taken_up)
        recorder = Recorder(directory)
        recorder.cut_back(recorded or 0)
        text = (directory / RECIPE).read_text(encoding="utf-8")
        return RunInProgress(assembly, recorder, directory, watcher, text).finish(resumed=recorded is not None)
    text = resolved_text(assembly.recipe, width_remarks(assembly.recipe.method, assembly.server))
    if directory is None:
        return RunInProgress(assembly, Recorder(), None, watcher, text).finish(resumed=False)
    with locked(directory):
        create_run(directory, text)
        return RunInProgress(assembly, Recorder(directory), directory, watcher, text).finish(resumed=False)


def _taken_up(file: Path, state: Mapping[str, Any]) -> None:
    """Check a checkpoint before a run goes on from it."""
    check_checkpoint(file, state)
    warn_of_threads(file.parents[1], state)
