"""The places where a task's data may lie: several sources per task, the real data before its stand-ins.

All of them are looked for under one directory, the task option `root` or else the environment variable FEDGMR_DATA.
docs/data.md says what goes where; `fedgmr data` prints what is there and downloads what is public.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fedgmr.settings.refusals import SettingError, suggestion
from fedgmr.tasks.formats.arrays import Counts, Images

_VARIABLE = "FEDGMR_DATA"
_Read = TypeVar("_Read", covariant=True)


class _Format(Protocol[_Read]):
    """A file format of `fedgmr/tasks/formats`."""

    def read(self, path: Path, seed: int = 0) -> _Read:
        """The data; the seed splits it into training and test where the files do not."""

    def count(self, path: Path) -> Counts:
        """The amount of data."""


@dataclass(frozen=True, kw_only=True)
class Source(Generic[_Read]):
    """One form in which a task's data may lie under the root."""

    name: str  # the task option `source`
    title: str  # of a task that uses it
    paths: tuple[str, ...]  # under the root; the first that is there is taken
    contents: str  # what to put there, for people
    format: _Format[_Read]
    stand_in: str | None = None  # see Task.stand_in
    download: Callable[[Path], Path] | None = None  # fetches the files into a root

    @staticmethod
    def find(
        task: str, sources: "Sequence[Source[_Read]]", root: str | None, name: str
    ) -> "tuple[Source[_Read], Path]":
        """The source of this name and where it lies; with the name auto the first that is there.

        Raises:
            SettingError: there is no such source, directory or data; the sentence says what to put where.
        """
        check_word("source", name, ["auto", *(source.name for source in sources)])
        admitted = [source for source in sources if name in ("auto", source.name)]
        contents = ", or ".join(source.contents for source in admitted)
        directory = _data_root(root)
        if directory is None:
            raise SettingError(
                f"The task {task} needs data and {_VARIABLE} is not set: set it, or task.options.root, to a directory "
                f"with {contents}."
            )
        for source in admitted:
            if (place := source.place(directory)) is not None:
                return source, place
        fetch = f", or run `fedgmr data --download {task}`" if any(source.download for source in admitted) else ""
        raise SettingError(f"{directory} has no data for the task {task}: put {contents} there{fetch}.")

    def fields(self: "Source[Images]", place: Path, seed: int = 0) -> dict[str, Any]:
        """The fields of a Task that come from this source, read from its place."""
        return {"title": self.title, "stand_in": self.stand_in, **self.format.read(place, seed).fields()}

    def place(self, root: Path) -> Path | None:
        """The path of the data under the root, if it is there."""
        return next((root / path for path in self.paths if (root / path).exists()), None)

    def status(self, task: str, root: Path | None) -> str:
        """The amount of data under the root, or what to put there, for the terminal."""
        place = self.place(root) if root else None
        if place is None:
            fetch = f", or run `fedgmr data --download {task}`" if self.download else ""
            return f"missing: put {self.contents} {f'into {root}' if root else 'there'}{fetch}."
        try:
            counted = str(self.format.count(place))
        except ValueError as error:  # a damaged file must not hide the others
            return str(error)
        return f"{place}: {counted}{', stands in' if self.stand_in else ''}"


def survey(root: str | None) -> str:
    """A listing of all sources of all tasks under the root, for the terminal."""
    directory = _data_root(root, "--root")
    title = f"Data in {directory}" if directory else f"{_VARIABLE} is not set: set it to the directory with the data."
    lines = [title]
    for task, sources in _sources():
        width = max(len(source.name) for source in sources)
        lines += ["", task, *(f"  {source.name:<{width}}  {source.status(task, directory)}" for source in sources)]
    return "\n".join(lines)


def tasks_with_data(root: str | None) -> tuple[list[str], Path | None]:
    """The tasks whose data is under the root, and the root."""
    directory = _data_root(root, "--root")
    if directory is None:
        return [], None
    return [task for task, sources in _sources() if any(source.place(directory) for source in sources)], directory


def download(task: str, root: str | None) -> Path:
    """Fetch a task's public files into the root; return where they are.

    Raises:
        SettingError: the task has no public files, or no root is given.
        DataError: the files cannot be fetched.
    """
    public = {name: source.download for name, sources in _sources() for source in sources if source.download}
    if task not in public:
        raise SettingError(
            f"--download is {task!r}, which is not public at a fixed address: give {' or '.join(public)}."
        )
    directory = _data_root(root, "--root")
    if directory is None:
        raise SettingError(f"{_VARIABLE} is not set: set it, or --root, to the directory for the data.")
    return public[task](directory)


def check_whole(key: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse a task option that is no whole number from `least` to `most`."""
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise SettingError(f"task.options.{key} is {value!r}: give a whole number {limits}.")


def check_path(key: str, value: object) -> None:
    """Refuse a task option that is no path."""
    if value is not None and not isinstance(value, str):
        raise SettingError(f"task.options.{key} is {value!r}: give the path of a directory, as a text.")


def check_word(key: str, value: object, known: Sequence[str]) -> None:
    """Refuse a task option that is none of the known words."""
    if value not in known:
        raise SettingError(f"task.options.{key} is {value!r}: {suggestion(str(value), list(known))}")


def kept_head(head: str, weight: str) -> tuple[str, ...]:
    """`Task.keep` for the option `head`: the last layer's weight where it stays whole in every sub-model."""
    check_word("head", head, ("ranked", "whole"))
    return (weight,) if head == "whole" else ()


def _sources() -> Iterator[tuple[str, Sequence[Source[object]]]]:
    """The built-in tasks that need data, with their sources."""
    from fedgmr.tasks import BUILT_IN

    for task in BUILT_IN:
        sources = getattr(importlib.import_module(f"fedgmr.tasks.{task}"), "SOURCES", ())
        if sources:
            yield task, sources


def _data_root(root: str | None, key: str = "task.options.root") -> Path | None:
    """The directory with the data, if one is given (under `key`) or set in the environment; it has to exist."""
    check_path("root", root)
    given = root or os.environ.get(_VARIABLE)
    if not given:
        return None
    path = Path(given).expanduser()
    if not path.is_dir():
        raise SettingError(
            f"{key if root else _VARIABLE} is {given!r}, which is no directory: create it and put the data there."
        )
    return path
