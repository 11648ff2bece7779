"""A run directory, read back: recipe, evaluations and summary as one value.

The files are `recipe.yaml`, `metrics.jsonl` (one JSON object per evaluation) and `summary.json` (absent until
a run ends). Read `plots` or `comparison` next.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgmr.files import METRICS, RECIPE, SUMMARY, digest, read_json
from fedgmr.reading import Reading
from fedgmr.reporting.history import History
from fedgmr.reporting.quantities import format_seconds
from fedgmr.reporting.recorder import digest_rows, read_rows

SCHEMA_VERSION = 1
_NUMBERS = ("seconds", "ticks", "final_accuracy", "final_loss", "validation_accuracy", "wall_seconds", "rows")
_MAPPINGS = ("views", "versions", "refused", "models", "stopped")
_DIGESTS = frozenset({"digest", "recipe_digest", "rows_digest"})  # of which earlier releases wrote none


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """A quantity over virtual time; `spread` is one std either way, absent for a single run."""

    seconds: NDArray[np.float64]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64] | None = None

    @classmethod
    def average(cls, runs: Sequence["Run"], column: Callable[["Run"], NDArray[np.float64]]) -> "Curve":
        """Average a column over runs; it keeps its value from one evaluation to the next.

        The grid is the runs' evaluation times from when all have begun, without near duplicates. It ends with the
        shortest run, but one that diverged or was stopped does not shorten it: its last value stands.
        """
        times = [run.history.seconds for run in runs]
        start = max(float(time[0]) for time in times)
        lasting = [float(run.history.seconds[-1]) for run in runs if run.status != "diverged" and not run.stopped]
        end = max(start, min(lasting, default=max(float(time[-1]) for time in times)))
        spacing = min(float(np.median(np.diff(time, prepend=start))) for time in times)
        union = np.unique(np.concatenate(times))
        # Seeds evaluate at nearly, not exactly, the same times: of a crowd, its last time stands for all.
        kept = [end]
        for time in union[(union >= start) & (union < end)][::-1]:
            if kept[-1] - time >= spacing / 2:
                kept.append(float(time))
        grid = np.array(kept[::-1])
        samples = [
            column(run)[np.searchsorted(time, grid, side="right") - 1] for run, time in zip(runs, times, strict=True)
        ]
        spread = np.std(samples, axis=0, ddof=1) if len(runs) > 1 else None
        return cls(seconds=grid, mean=np.mean(samples, axis=0), spread=spread)


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run: its recipe, rows and summary; `summary` is empty for a run that has not ended."""

    path: Path | None = None  # the run directory, where there is one
    recipe_text: str
    summary: Mapping[str, Any]
    history: History

    @property
    def title(self) -> str:
        """The method's name for people, or the directory's when there is no summary yet."""
        return str(
            self.summary.get("method_title") or self.summary.get("method") or (self.path.name if self.path else "run")
        )

    @property
    def clock(self) -> str:
        """`real` for a deployed run, `virtual` for a simulated one."""
        return str(self.summary.get("clock", "virtual"))

    @property
    def status(self) -> str:
        """`finished`, `diverged`, ... as recorded; `unfinished` without a summary."""
        return str(self.summary.get("status", "unfinished"))

    @property
    def stopped(self) -> Mapping[str, Any]:
        """Who ended the run before its time budget (`by`), why (`reason`), and when; empty where nobody did."""
        return dict(self.summary.get("stopped", {}))

    @property
    def seconds(self) -> float:
        """Virtual seconds this run covers."""
        return max(float(self.summary.get("seconds") or 0.0), float(self.history.seconds[-1]))

    @property
    def reading(self) -> Reading:
        """How its leading metric is read, which fields called accuracy hold whatever it is."""
        return Reading.recorded(self.summary or self.history[-1])[0]

    @property
    def final_accuracy(self) -> float:
        """Leading metric of the last evaluation; NaN if it was not a number."""
        recorded = self.summary.get("final_accuracy")
        return float(self.history.accuracy[-1] if recorded is None else recorded)

    def accuracy_at(self, seconds: float) -> float:
        """Leading metric of the last evaluation at or before `seconds`; NaN before the first one."""
        index = int(np.searchsorted(self.history.seconds, seconds, side="right")) - 1
        return float(self.history.accuracy[index]) if index >= 0 else math.nan

    def time_to(self, target: float) -> float | None:
        """Virtual seconds of the first evaluation that is as good as `target`; None if there is none."""
        index = self._first_reaching(target)
        return None if index is None else float(self.history.seconds[index])

    def bytes_to(self, target: float) -> int | None:
        """Bytes up and down over all clients at the first evaluation that is as good as `target`."""
        index = self._first_reaching(target)
        if index is None:
            return None
        return int(self.history.bytes_down[index].sum() + self.history.bytes_up[index].sum())

    @property
    def clients_by_speed(self) -> list[int]:
        """Clients from fast to slow: by the density they began with, which follows the link, then by number."""
        return [int(client) for client in np.argsort(-self.history.density[0], kind="stable")]

    @property
    def notices(self) -> list[str]:
        """Sentences that a reader must know before believing the numbers."""
        notices = []
        end = format_seconds(float(self.history.seconds[-1]))
        if self.status == "unfinished":
            notices.append(f"This run has not finished: it is still going, or was interrupted. Shown up to {end}.")
        elif self.status == "diverged":
            notices.append(f"This run diverged: its numbers describe a broken model. Shown up to {end}.")
        elif self.stopped:
            notices.append(f"Stopped at {end} by {self.stopped.get('by')}: {self.stopped.get('reason')}.")
        elif self.status != "finished":
            notices.append(f"This run ended with status “{self.status}”. Shown up to {end}.")
        return [*notices, *marks(self.summary, self.reading)]

    def _first_reaching(self, target: float) -> int | None:
        sign = self.reading.score(1.0)
        reached = np.flatnonzero(sign * self.history.accuracy >= sign * target)
        return int(reached[0]) if reached.size else None


def marks(summary: Mapping[str, Any], reading: Reading) -> list[str]:
    """Sentences about a run that hold however it ended; `reading`: of its leading metric."""
    found = [str(summary["advice"])] if summary.get("advice") else []
    if summary.get("short"):
        found.append("Short run: a shortened recipe, good for trying things out, not for conclusions.")
    if summary.get("decides_on_test"):
        found.append(f"Decides on the test set: nothing is held out, so its {reading.name} is optimistic.")
    if summary.get("stand_in"):
        found.append(f"Stand-in data: {summary['stand_in']}.".replace("..", "."))
    return found


def validated(summary: Mapping[str, Any]) -> float | None:
    """A run's leading metric on held-out samples, for choosing settings; None where it decides on the test set.

    Of the best view over the last ten evaluations; in runs without views, of the final model.
    """
    if summary.get("decides_on_test"):
        return None
    best = summary.get("views", {}).get(summary.get("best_view"), {})
    found: float | None = best.get("validation")
    return summary.get("validation_accuracy") if found is None else found


def read_run(path: str | Path) -> Run:
    """Read a directory with at least `recipe.yaml` and `metrics.jsonl`, whose last line may be half-written.

    Raises:
        ValueError: `path` is not a run directory, one of its files cannot be understood, or the rows are not those that
            the summary was written for. Runs of releases without digests are taken as they are.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a run directory: there is no such directory.")
    missing = [name for name in (RECIPE, METRICS) if not (directory / name).is_file()]
    if missing:
        raise ValueError(f"{directory} is not a run directory: {' and '.join(missing)} missing.")
    rows, summary = read_rows(directory / METRICS), read_summary(directory / SUMMARY)
    if not rows:
        raise ValueError(f"{directory} is not a run directory yet: no complete evaluation in metrics.jsonl.")
    if "rows_digest" in summary and (len(rows), digest_rows(rows)) != (summary.get("rows"), summary["rows_digest"]):
        raise ValueError(
            f"{directory / METRICS} does not hold the {summary.get('rows')} rows that {SUMMARY} was written for: "
            "restore it or run the recipe anew."
        )
    return Run(
        path=directory,
        recipe_text=(directory / RECIPE).read_text(encoding="utf-8", errors="replace"),
        summary=summary,
        history=History.of(rows, directory / METRICS),
    )


def read_summary(path: Path) -> Mapping[str, Any]:
    """The summary of a run; empty where it has none yet, ValueError where it was changed or cannot be understood."""
    summary = read_json(path)
    if not path.is_file():
        return summary
    version = summary.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"{path} has schema_version {version}; this fedgmr reads version {SCHEMA_VERSION}.")
    if not _DIGESTS.isdisjoint(summary) and summary.get("digest") != digest_summary(summary):
        raise ValueError(f"{path} was changed after it was written, its digest does not match: restore it.")
    wrong = [name for name in _NUMBERS if not _is_number(summary.get(name))]
    wrong += [name for name in _MAPPINGS if not isinstance(summary.get(name, {}), dict)]
    events = summary.get("events", [])
    wrong += [] if isinstance(events, list) and all(isinstance(event, dict) for event in events) else ["events"]
    if not wrong:
        wrong = [name for name, view in summary.get("views", {}).items() if not _is_view(view)]
    if wrong:
        raise ValueError(f"{path}: {wrong[0]!r} is not what it should be, a number or an object: restore the file.")
    return summary


def digest_summary(summary: Mapping[str, Any]) -> str:
    """Checksum of all that a summary says, for its field `digest`."""
    return digest({name: value for name, value in summary.items() if name != "digest"})


def _is_number(value: Any) -> bool:
    """Whether a value of a JSON file is null or a number that a float can hold."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 1 << 1023
    return value is None or isinstance(value, float)


def _is_view(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(value.get(name)) for name in ("accuracy", "loss", "validation"))
