"""The paper's numbers, read from `paper.yaml` beside this file; the only place where any of them stands."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgmr.paper.grid import HETEROGENEITIES, SPLITS, TASKS, Setting
from fedgmr.paper.tables import Measure
from fedgmr.settings.text import read_mapping

WINDOW = 10  # evaluations on either side of t*


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The paper's numbers."""

    data: Mapping[str, Any]

    def accuracy(self, table: str, setting: Setting, variant: str) -> Measure | None:
        """Accuracy in percent, with the deviation over the evaluations around t*."""
        rows = self.data[table]["accuracy"].get(setting.heterogeneity, {})
        pair = rows.get(variant, {}).get(setting.task, {}).get(setting.split)
        return None if pair is None else Measure(mean=pair[0], std=pair[1])

    def mri(self, setting: Setting) -> Measure:
        """The mean relative improvement of FedGMR, in percent."""
        return Measure(mean=self.data["baselines"]["mri"][setting.heterogeneity][setting.task][setting.split])

    def settings(self, table: str) -> list[Setting]:
        """The settings a table has numbers for, in the order of the grid."""
        return [setting for setting in _grid() if any(self.accuracy(table, setting, v) for v in self.variants(table))]

    def variants(self, table: str) -> list[str]:
        """The variants a table has numbers for, in its order."""
        return list(dict.fromkeys(v for rows in self.data[table]["accuracy"].values() for v in rows))

    def t_star(self, task: str) -> float:
        """Seconds at which accuracies are compared."""
        return float(self.data["t_star"][task])

    def seconds(self, task: str) -> float:
        """The length of a run."""
        return float(self.data["seconds"][task])

    def contradictions(self, table: str) -> list[str]:
        """Where the paper contradicts itself about this table."""
        return [f"in the paper, {text}" for text in self.data["contradictions"].get(table, [])]


def read_paper() -> Paper:
    """The numbers that ship with the package."""
    return Paper(data=read_mapping(Path(__file__).with_name("paper.yaml")))


def _grid() -> Iterator[Setting]:
    for heterogeneity in HETEROGENEITIES:
        for task in TASKS:
            for split in SPLITS:
                yield Setting(task=task, heterogeneity=heterogeneity, split=split)
