"""Where a task's data may lie: several sources per task, the real data before what stands in for it.

All of them are looked for under one directory, the task option `root` or else the environment variable FEDGMR_DATA.
docs/data.md says what goes where; `fedgmr data` prints what is there (`survey.py`).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgmr.settings.refusals import SettingError, suggestion
from fedgmr.tasks.formats.arrays import Counts

VARIABLE = "FEDGMR_DATA"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One form in which a task's data may lie under the root."""

    name: str  # the task option `source`
    paths: tuple[str, ...]  # under the root; the first that is there is taken
    wanted: str  # what to put there, for people
    count: Callable[[Path], Counts]
    stand_in: str | None = None  # see Task.stand_in
    download: Callable[[Path], Path] | None = None  # fetches it into a root

    def place(self, root: Path) -> Path | None:
        """Where it lies, if it does."""
        return next((root / path for path in self.paths if (root / path).exists()), None)


def find_source(task: str, sources: Sequence[Source], root: str | None, name: str) -> tuple[Source, Path]:
    """The source to use and where it lies.

    Args:
        task: name of the task.
        sources: its sources, the preferred one first.
        root: the directory; None: the environment variable says.
        name: of the source; auto: the first that is there.

    Raises:
        SettingError: there is no such source, no such directory or no such data; the sentence says what to put where.
    """
    known = [source.name for source in sources]
    if name != "auto" and name not in known:
        raise SettingError(f"task.options.source is {name!r}: {suggestion(name, ['auto', *known])}")
    admitted = [source for source in sources if name in ("auto", source.name)]
    directory = data_root(root)
    if directory is None:
        raise SettingError(
            f"The task {task} needs data and {VARIABLE} is not set: set it, or task.options.root, to a directory "
            f"with {_wanted(admitted)}."
        )
    for source in admitted:
        if (place := source.place(directory)) is not None:
            return source, place
    fetch = f", or run `fedgmr data --download {task}`" if any(source.download for source in admitted) else ""
    raise SettingError(f"{directory} has no data for the task {task}: put {_wanted(admitted)} there{fetch}.")


def data_root(root: str | None, key: str = "task.options.root") -> Path | None:
    """The directory with the data, if one is given (under `key`) or set in the environment; it has to exist."""
    given = root or os.environ.get(VARIABLE)
    if not given:
        return None
    path = Path(given).expanduser()
    if not path.is_dir():
        raise SettingError(
            f"{key if root else VARIABLE} is {given!r}, which is no directory: create it and put the data there."
        )
    return path


def check_whole(key: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse a task option that is no whole number from `least` to `most`."""
    if not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise SettingError(f"task.options.{key} is {value!r}: give a whole number {limits}.")


def _wanted(sources: Sequence[Source]) -> str:
    return ", or ".join(source.wanted for source in sources)
