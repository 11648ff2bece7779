"""What there is, one line each: methods, tasks, fleets, recipes."""

import inspect
from collections.abc import Callable, Iterator

from fedgmr.fleets.presets import CLASSES, COMPOSITIONS
from fedgmr.methods.method import BUILT_IN as METHODS
from fedgmr.methods.method import method_factory
from fedgmr.recipe import shipped_recipes
from fedgmr.settings.text import read_mapping
from fedgmr.tasks import BUILT_IN as TASKS
from fedgmr.tasks.task import task_factory


def catalogue() -> str:
    """A listing for the terminal."""
    sections = {"Methods": _methods(), "Tasks": _tasks(), "Fleets": _fleets(), "Recipes": _recipes()}
    lines = []
    for title, entries in sections.items():
        listed = list(entries)
        width = max((len(name) for name, _ in listed), default=0)
        lines += [title, *(f"  {name:<{width}}  {about}" for name, about in listed), ""]
    return "\n".join(lines).rstrip()


def _methods() -> Iterator[tuple[str, str]]:
    for name in METHODS:
        yield name, _first_line(method_factory(name))


def _tasks() -> Iterator[tuple[str, str]]:
    for name in TASKS:
        yield name, _first_line(task_factory(name))


def _fleets() -> Iterator[tuple[str, str]]:
    for name, counts in COMPOSITIONS.items():
        classes = zip(counts, CLASSES, strict=True)
        yield (
            name,
            "ten clients, down/up MiB/s: " + ", ".join(f"{n} x {link.down:g}/{link.up:g}" for n, link in classes),
        )
    yield "custom", "any list of links: fleet: {name: custom, links: [{down: 20, up: 5}, ...]}"


def _recipes() -> Iterator[tuple[str, str]]:
    for name, path in shipped_recipes().items():
        yield name, str(read_mapping(path).get("about", ""))


def _first_line(thing: Callable[..., object]) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
