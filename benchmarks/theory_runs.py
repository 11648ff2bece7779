"""The runs of the study in `theory.py`: with and without restoration, in pairs of the same setting and seed."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgmr.files import RECIPE, SUMMARY
from fedgmr.reporting.records import Run, read_run
from fedgmr.reporting.theory import Terms, Theory
from fedgmr.settings.text import read_mapping

WITHOUT = "fedgmr_without_restoration"
KEPT = {  # setting -> pattern below results/, of runs with restoration and without it; one seed after the other
    "CIFAR-10, patience 3": ("cifar10-fedgmr-s0-96006*",),
    "CIFAR-10, patience 5": ("cifar10-fedgmr-s0-051a1*", "cifar10-fedgmr-s1-713e2*"),
    "CIFAR-10, patience 10": ("cifar10-fedgmr-s0-084cf*", "cifar10-fedgmr-s1-68555*"),
    "CIFAR-10, as released": ("cifar10-released-fedgmr-s0-*",),
    "FEMNIST, fair": tuple(f"fair-femnist-fedgmr-s{seed}-*" for seed in range(3)),
    "ImageNet-100, short": ("imagenet100-fedgmr-s7-*",),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """A run and its terms."""

    run: Run

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Its resolved recipe."""
        assert self.run.path is not None
        return read_mapping(self.run.path / RECIPE)

    @property
    def dealt(self) -> str:
        """How its samples were dealt."""
        return str(self.recipe["partition"]["kind"])

    @cached_property
    def terms(self) -> list[Terms]:
        """Those of every row."""
        theory = Theory(self.recipe)
        return [terms for row in self.run.history if (terms := theory.add(row)) is not None]

    @cached_property
    def last(self) -> slice:
        """The last tenth of the rows."""
        return slice(-max(3, len(self.terms) // 10), None)

    def accuracy(self, view: str = "merged") -> float:
        """The mean accuracy of a view over the last tenth."""
        return float(np.nanmean(self.run.history.view(view)[self.last])) if self.has(view) else math.nan

    def loss(self) -> float:
        """The mean loss of the merged model over the last tenth."""
        return float(np.mean(self.run.history.loss[self.last]))

    def has(self, view: str) -> bool:
        """Whether a view was tested in the last tenth."""
        return bool(np.isfinite(self.run.history.view(view)[self.last]).all())

    def jitter(self, view: str = "merged") -> float:
        """How much an evaluation differs from its two neighbours: a standard deviation, over the last fifth."""
        values = self.run.history.view(view)[-2 * len(self.terms[self.last]) :]
        return float(np.std(values[1:-1] - (values[:-2] + values[2:]) / 2) * math.sqrt(2 / 3))

    def mean(self, value: Callable[[Terms], float | None]) -> float:
        """The mean of a term over all rows, as the bound of Theorem 5.6 has it."""
        known = [found for terms in self.terms if (found := value(terms)) is not None]
        return float(np.mean(known)) if known else math.nan

    def noise(self, view: str = "merged") -> float:
        """The noise factor at the end; where everybody is whole by the weights of the updates."""
        terms = self.terms[-1]
        if view == "padded":
            return terms.coverage.padded_noise(terms.energy)
        whole = terms.coverage == terms.coverage.whole and terms.effective is not None
        return 1 / (terms.effective or 1.0) if whole else terms.coverage.noise(terms.energy)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """The same setting and seed with restoration and without it."""

    setting: str
    restored: Study
    fixed: Study

    @property
    def long(self) -> bool:
        """Whether there are enough evaluations to tell noise from luck."""
        return len(self.restored.terms) >= 300

    @property
    def lead(self) -> NDArray[np.float64]:
        """By how much the run with restoration is ahead at each of its rows."""
        ours, theirs = self.restored.run.history, self.fixed.run.history
        return ours.accuracy - np.interp(ours.seconds, theirs.seconds, theirs.accuracy)


def kept_pairs(results: Path) -> Iterator[Pair]:
    """The pairs among the kept runs."""
    for setting, patterns in KEPT.items():
        for pattern in patterns:
            (path,) = results.glob(pattern)
            prefix, seed = path.name.split("-fedgmr-")[0], path.name.split("-")[-2]
            (other,) = results.glob(f"{prefix}-{WITHOUT}-{seed}-*")
            yield Pair(setting=setting, restored=Study(run=read_run(path)), fixed=Study(run=read_run(other)))


def quickstart_pairs(directory: Path) -> Iterator[Pair]:
    """The pairs of a comparison, as far as they are there."""
    for path in sorted(directory.glob("fedgmr-seed*")):
        other = directory / path.name.replace("fedgmr", WITHOUT)
        if (path / SUMMARY).is_file() and (other / SUMMARY).is_file():
            yield Pair(setting="quickstart", restored=Study(run=read_run(path)), fixed=Study(run=read_run(other)))
