"""What a tracker must do, and the trackers by name. Their packages are imported when one of them is made."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedgmr.reporting.run_files import RunFiles
from fedgmr.settings.refusals import SettingError

Values = Mapping[str, float]
GOOD_ENDS = ("finished", "stopped")  # statuses of runs that came to the end they were meant to come to


class Tracker(Protocol):
    """A target of an export. Rows are numbered from 0, in the order of `metrics.jsonl`."""

    takes_back: bool  # whether rows can be withdrawn; else it gets only those that no resume writes again

    def begin(self, run: RunFiles) -> None:
        """Be told of a run; what an earlier export left of it is replaced."""

    def add(self, run: RunFiles, first: int, rows: Sequence[Values]) -> None:
        """Take the rows from number `first` on: the numbers of each by name."""

    def take_back(self, run: RunFiles, first: int) -> None:
        """Forget the rows from number `first` on; called only where it `takes_back`."""

    def flush(self) -> None:
        """Let others see what was added."""

    def end(self, run: RunFiles, summary: Mapping[str, Any]) -> None:
        """Be told that no further rows come; the summary is empty where the run has not ended."""

    def close(self) -> str:
        """Write what is left; returns where it is, for people."""


# By name: the module and its function (where to, the exported directory) -> Tracker; the packages it needs.
TARGETS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "tensorboard": ("tensorboard", "TensorBoard", ("tensorboard",)),
    "wandb": ("wandb", "WeightsAndBiases", ("wandb",)),
    "mlflow": ("mlflow", "MLflow", ("mlflow", "sqlalchemy", "alembic")),
    "csv": ("tables", "csv_tables", ()),
    "parquet": ("tables", "parquet_tables", ("pyarrow",)),
}


def make_tracker(name: str, exported: Path, output: Path | None) -> Tracker:
    """The tracker of this name; SettingError where a package of it is missing."""
    module, function, packages = TARGETS[name]
    if missing := [package for package in packages if find_spec(package) is None]:
        raise SettingError(
            f"--to is {name!r}, for which {' and '.join(missing)} must be installed: give `pip install '.[{name}]'` in "
            f"a checkout of fedgmr, or `pip install {' '.join(missing)}`."
        )
    make: Callable[[Path, Path | None], Tracker] = getattr(import_module(f"fedgmr.trackers.{module}"), function)
    return make(exported, output)
