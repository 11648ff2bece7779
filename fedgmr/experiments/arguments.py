"""The arguments of `simulate`, `resume` and `load`: what they cannot take is one sentence with its name and the fix.

Read next: `run.py`, which takes them.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgmr.experiments.watching import Watchers, as_watchers
from fedgmr.fleets.links import Link
from fedgmr.fleets.presets import FleetSettings
from fedgmr.methods import Method, named_method
from fedgmr.recipe import Recipe, TaskSettings
from fedgmr.reporting.display import Display, in_notebook
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.build import build
from fedgmr.settings.refusals import SettingError, show_value, suggestion
from fedgmr.tasks.partition import ByUser
from fedgmr.tasks.task import Task


def recipe_of(
    task: Task | str,
    method: Method | str,
    fleet: FleetSettings | Mapping[str, Any] | Sequence[Link | Mapping[str, Any]] | str,
    values: Mapping[str, Any],
    sections: Mapping[str, Any],
) -> Recipe:
    """The recipe that the arguments of `simulate` describe; a section that is None has its default."""
    _check_task(task)
    composed = _composed(method)
    owned = not isinstance(task, str) and task.users is not None
    data = {
        "name": composed.name,
        **({"partition": ByUser()} if owned else {}),
        **{key: value for key, value in sections.items() if value is not None},
        **values,
        "task": TaskSettings(name=task if isinstance(task, str) else task.name),
        "method": composed,
        "fleet": _fleet_settings(fleet),
    }
    return build(Recipe, data)


def directory_of(path: Any, name: str) -> Path:
    """The argument `name` as a path."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise SettingError(f"{name} is {show_value(path)}: give the path of a run directory.")
    return Path(path)


def refuse_unknown(given: Iterable[str], function: Callable[..., object]) -> None:
    """Refuse arguments that a function does not have, with the one that was meant."""
    known = [argument for argument in function.__annotations__ if argument not in ("unknown", "return")]
    for key in given:
        raise SettingError(f"{key} is not an argument of {function.__name__}: {suggestion(key, known)}")


@contextmanager
def watched(watcher: Watchers, progress: object, label: str, seconds: float) -> Iterator[list[Watcher]]:
    """The watchers of a run, within a display of its progress if that is wanted."""
    given = as_watchers(watcher)
    if not isinstance(progress, bool):
        raise SettingError(f"progress is {show_value(progress)}: give True or False.")
    if not progress:
        yield given
        return
    with Display(stream=sys.stdout if in_notebook() else None) as display:  # in a notebook among its output
        yield [display.begin("", label, seconds), *given]


def _check_task(task: object) -> None:
    if isinstance(task, Task | str):
        return
    wish = "a fedgmr.Task, the name of a built-in task, or package.module:function"
    if isinstance(task, type):
        raise SettingError(f"task is the class {task.__name__}: give {wish}.")
    name = getattr(task, "__name__", "")
    if callable(task) and name:
        raise SettingError(f"task is the function {name}: give the Task that it returns, {name}(...).")
    raise SettingError(f"task is of type {type(task).__name__}: give {wish}.")


def _composed(method: object) -> Method:
    if isinstance(method, str):
        return named_method(method)
    if isinstance(method, Method):
        return method
    if isinstance(method, Mapping):
        settings = ", {...}" if len(method) > 1 else ""
        fix = f"give fedgmr.named_method({method.get('name', 'fedgmr')!r}{settings})"
        raise SettingError(f"method is {show_value(dict(method))}: {fix}.")
    raise SettingError(f"method is {show_value(method)}: give the name of a method, see `fedgmr list`, or a Method.")


def _fleet_settings(fleet: object) -> FleetSettings | Mapping[str, Any]:
    if isinstance(fleet, FleetSettings | Mapping):
        return fleet
    if isinstance(fleet, str):
        return build(FleetSettings, {"name": fleet}, path="fleet")
    if isinstance(fleet, Sequence):
        return build(FleetSettings, {"name": "custom", "links": fleet}, path="fleet")
    wish = "a name (high, medium, low), a FleetSettings, or a list with one Link per client"
    raise SettingError(f"fleet is {show_value(fleet)}: give {wish}.")
