"""The paper's numbers, read from `paper.yaml` beside this file; the only place where any of them stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedgmr.paper.grid import HETEROGENEITIES, SPLITS, TASKS, Setting
from fedgmr.paper.tables import Measure
from fedgmr.settings.text import read_mapping

WINDOW = 10  # evaluations on either side of t*
# In this order: where tables contradict each other, the first counts (A40).
ACCURACY_TABLES = ("baselines", "ablation", "aggregation", "plugin", "fixed_time")


@dataclass(frozen=True, kw_only=True)
class Paper:
    """The paper's numbers."""

    data: Mapping[str, Any]

    @classmethod
    def read(cls) -> "Paper":
        """The numbers that ship with the package."""
        return cls(data=read_mapping(Path(__file__).with_name("paper.yaml")))

    def accuracy(self, table: str, setting: Setting, variant: str) -> Measure | None:
        """Accuracy in percent, with the deviation over the evaluations around t*."""
        rows = self.data[table]["accuracy"].get(setting.heterogeneity, {})
        pair = rows.get(variant, {}).get(setting.task, {}).get(setting.split)
        return None if pair is None else Measure(mean=pair[0], std=pair[1])

    def first_accuracy(self, setting: Setting, variant: str) -> Measure | None:
        """The accuracy of a variant in the first table that has it."""
        numbers = (self.accuracy(table, setting, variant) for table in ACCURACY_TABLES)
        return next((number for number in numbers if number is not None), None)

    def mri(self, setting: Setting) -> Measure:
        """The mean relative improvement of FedGMR, in percent."""
        return Measure(mean=self.data["baselines"]["mri"][setting.heterogeneity][setting.task][setting.split])

    def settings(self, table: str) -> list[Setting]:
        """The settings a table has numbers for, in the order of the grid."""
        places = product(HETEROGENEITIES, TASKS, SPLITS)
        grid = [Setting(task=task, heterogeneity=level, split=split) for level, task, split in places]
        return [setting for setting in grid if any(self.accuracy(table, setting, v) for v in self.variants(table))]

    def variants(self, table: str) -> list[str]:
        """The variants a table has numbers for, in its order."""
        return list(dict.fromkeys(v for rows in self.data[table]["accuracy"].values() for v in rows))

    def t_star(self, task: str, seconds: float | None = None) -> float:
        """The time at which accuracies are compared; in a run that ends before it, at the same share of its time."""
        t_star = float(self.data["t_star"][task])
        return t_star if seconds is None or seconds >= t_star else t_star * float(seconds) / self.seconds(task)

    def seconds(self, task: str) -> float:
        """The length of a run."""
        return float(self.data["seconds"][task])

    def contradictions(self, table: str) -> list[str]:
        """Sentences on where the paper contradicts itself about this table."""
        return [f"in the paper, {text}" for text in self.data["contradictions"].get(table, [])]
