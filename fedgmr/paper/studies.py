"""Which runs each of the paper's tables is made of, and how they are arranged.

A table that is trained is a `Study`; `ims-cost` and `communication` are computed without runs (`ims_cost.py`,
`communication.py`). Read next: `making.py`, from a study to a table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedgmr.methods import PAPER, named_method
from fedgmr.paper.arrangement import (
    Findings,
    baseline_blocks,
    grid_blocks,
    patience_blocks,
    plugin_blocks,
)
from fedgmr.paper.density_growth import growth_blocks, growth_notes, growth_recipe, growth_variants
from fedgmr.paper.grid import TASKS, Setting, recipe_for
from fedgmr.paper.numbers import Paper
from fedgmr.paper.tables import Block
from fedgmr.recipe import Recipe

PATIENCES, PATIENCES_SHORT = (3, 5, 10, 20), (1, 2, 3)
COMPUTED = ("ims-cost", "communication")
_AT_T_STAR = (
    "Test accuracy (%) at t*: mean of the 10 evaluations before and the 10 after it, ± their standard deviation."
)


class RecipeOf(Protocol):
    """Makes the recipe of a variant at a setting."""

    def __call__(self, setting: Setting, variant: str, *, seed: int, short: bool, overrides: Sequence[str]) -> Recipe:
        """`seed` is counted from the recipe's own."""
        ...


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table made of runs."""

    name: str
    key: str  # in paper.yaml
    title: str
    about: str = _AT_T_STAR
    rows: Callable[[bool], Mapping[str, str]]  # whether short -> title by variant
    arrange: Callable[[Findings], tuple[Block, ...]] = grid_blocks
    remarks: Callable[[Findings], list[str]] = lambda findings: []
    recipe: RecipeOf = recipe_for

    def settings(self, paper: Paper) -> list[Setting]:
        """The settings of the paper's table."""
        if "accuracy" in paper.data[self.key]:
            return paper.settings(self.key)
        return [Setting(task=task, heterogeneity="high", split="noniid") for task in TASKS]


def _titled(names: Sequence[str]) -> Callable[[bool], Mapping[str, str]]:
    return lambda short: {name: named_method(name).title for name in names}


def _patience_rows(short: bool) -> Mapping[str, str]:
    values = PATIENCES_SHORT if short else PATIENCES
    return {"fedgmr_without_restoration": "w/o GMR"} | {f"fedgmr/patience={n}": f"patience {n}" for n in values}


_AGGREGATIONS = {
    "fedgmr": "GMR + MA",
    "fedgmr/ga": "GMR + GA",
    "fedgmr/fa": "GMR + FA",
    "fedgmr_without_restoration": "w/o GMR + MA",
    "fedgmr_without_restoration/ga": "w/o GMR + GA",
    "fedgmr_without_restoration/fa": "w/o GMR + FA",
}
_ABLATIONS = {
    "fedgmr": "FedGMR",
    "fedgmr_without_asynchrony": "w/o Asyn",
    "fedgmr_without_restoration": "w/o GMR",
    "fedgmr_without_buffer": "w/o Buff",
    "fedgmr_without_ims": "w/o IMS",
    "fedgmr_without_buffer_and_ims": "w/o (Buff, IMS)",
}
_FIXED_TIME = {
    "fedgmr": "GMR (ES)",
    "fedgmr/fixed_time": "GMR (Fixed)",
    "fedgmr_without_asynchrony": "w/o Asyn",
    "fedgmr_without_restoration": "w/o GMR",
}
_PLUGGED = [
    f"{base}{step}" for base in ("heterofl", "fjord", "fedrolex", "fiarse") for step in ("", "+aux", "+aux+gmr")
]


def studies() -> dict[str, Study]:
    """By name."""
    every = (
        Study(
            name="baselines",
            key="baselines",
            title="FedGMR and the baselines",
            rows=_titled(PAPER),
            arrange=baseline_blocks,
        ),
        Study(
            name="aggregation",
            key="aggregation",
            title="Rules of aggregation with and without GMR",
            rows=lambda short: _AGGREGATIONS,
        ),
        Study(name="ablation", key="ablation", title="FedGMR without its parts", rows=lambda short: _ABLATIONS),
        Study(
            name="plugin",
            key="plugin",
            title="GMR plugged into other methods",
            rows=_titled(_PLUGGED),
            arrange=plugin_blocks,
        ),
        Study(
            name="patience",
            key="patience",
            title="FedGMR by patience",
            rows=_patience_rows,
            arrange=patience_blocks,
        ),
        Study(
            name="fixed-time",
            key="fixed_time",
            title="Restoration by saturation and at fixed times",
            rows=lambda short: _FIXED_TIME,
        ),
        Study(
            name="density-growth",
            key="density_growth",
            title="Growth of accuracy by density",
            about="Points of accuracy per 100 merges in three stages of a run, every client at the same fixed density.",
            rows=lambda short: growth_variants(),
            arrange=growth_blocks,
            remarks=growth_notes,
            recipe=growth_recipe,
        ),
    )
    return {study.name: study for study in every}
