"""What `fedgmr data` prints: which data is there, where, how much of it, and what to put where for the rest."""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedgmr.settings.refusals import SettingError
from fedgmr.tasks import BUILT_IN
from fedgmr.tasks.sources import VARIABLE, Source, data_root


def survey(root: str | None) -> str:
    """A listing of all sources of all tasks under the root, for the terminal."""
    directory = data_root(root, "--root")
    title = f"Data in {directory}" if directory else f"{VARIABLE} is not set: set it to the directory with the data."
    lines = [title]
    for task, sources in _sources():
        width = max(len(source.name) for source in sources)
        lines += ["", task, *(f"  {source.name:<{width}}  {_standing(task, source, directory)}" for source in sources)]
    return "\n".join(lines)


def download(task: str, root: str | None) -> Path:
    """Fetch a task's public files into the root; returns where they are.

    Raises:
        SettingError: the task has no public files, or no root is given.
        DataError: the files cannot be fetched.
    """
    public = {name: source.download for name, sources in _sources() for source in sources if source.download}
    if task not in public:
        raise SettingError(
            f"--download is {task!r}, which is not public at a fixed address: give {' or '.join(public)}."
        )
    directory = data_root(root, "--root")
    if directory is None:
        raise SettingError(f"{VARIABLE} is not set: set it, or --root, to the directory for the data.")
    return public[task](directory)


def _sources() -> Iterator[tuple[str, Sequence[Source]]]:
    for task, module in BUILT_IN.items():
        sources = getattr(importlib.import_module(f"fedgmr.tasks.{module}"), "SOURCES", ())
        if sources:
            yield task, sources


def _standing(task: str, source: Source, directory: Path | None) -> str:
    place = source.place(directory) if directory else None
    if place is None:
        fetch = f", or run `fedgmr data --download {task}`" if source.download else ""
        return f"missing: put {source.wanted} {f'into {directory}' if directory else 'there'}{fetch}."
    try:
        counted = str(source.count(place))
    except ValueError as error:  # a damaged file must not hide the others
        return str(error)
    return f"{place}: {counted}{', stands in' if source.stand_in else ''}"
