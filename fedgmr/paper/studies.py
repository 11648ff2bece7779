"""Studies: the tables that are made of runs, with the recipes they need and the arrangement of their numbers.

Most have one block per heterogeneity, with variants down and tasks and splits across; the classes below `Study` are
arranged in another way. `growth.py` has one more. Read next: `planning.py`, which has the list of all tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedgmr.paper.accuracy import Kind, accuracy_at_t_star, best_views, mean_relative_improvement
from fedgmr.paper.grid import HETEROGENEITIES, TASKS, Setting, recipe_for
from fedgmr.paper.numbers import Paper
from fedgmr.paper.tables import Block, Cell, Measure
from fedgmr.recipe import Recipe
from fedgmr.reporting.chart import Chart
from fedgmr.reporting.records import Run

_AT_T_STAR = (
    "Test accuracy (%) at t*: mean of the 10 evaluations before and the 10 after it, ± their standard deviation."
)


@dataclass(frozen=True, kw_only=True)
class CellRuns:
    """The finished runs of a variant at a setting, one per seed, or why there are none."""

    runs: tuple[Run, ...] = ()
    absent: str = "missing"

    @property
    def stand_in(self) -> bool:
        """Whether the data of any of them stands in for other data."""
        return any(run.summary.get("stand_in") for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class StudyRuns:
    """The runs of a study that are finished, by cell."""

    key: str  # of the table in paper.yaml
    paper: Paper
    settings: Sequence[Setting]
    rows: Mapping[str, str]  # titles by variant
    cells: Mapping[tuple[Setting, str], CellRuns]

    def measure(self, setting: Setting, variant: str, kind: Kind = "merged") -> Measure | None:
        """Our accuracy at t*."""
        runs = self.cells[setting, variant].runs
        return accuracy_at_t_star(runs, self.paper, setting.task, kind) if runs else None

    def cell(self, setting: Setting, variant: str, theirs: Measure | None) -> Cell:
        """Our accuracies beside `theirs`."""
        found = self.cells[setting, variant]
        return Cell(
            ours=self.measure(setting, variant),
            best=self.measure(setting, variant, "best"),
            best_view=best_views(found.runs),
            larger=self.measure(setting, variant, "larger"),
            paper=theirs,
            absent=found.absent,
            stand_in=found.stand_in,
        )

    def stand_in(self, setting: Setting) -> bool:
        """Whether any number of this setting is of data that stands in for other data."""
        return any(self.cells[setting, variant].stand_in for variant in self.rows)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table made of runs: one block per heterogeneity, variants down, tasks and splits across."""

    name: str
    title: str
    rows: Mapping[str, str]  # titles by variant
    short_rows: Mapping[str, str] | None = None  # where short runs have other variants
    about: str = _AT_T_STAR
    at_t_star: bool = True

    @property
    def key(self) -> str:
        """The table's name in `paper.yaml`."""
        return self.name.replace("-", "_")

    def variants(self, *, short: bool) -> Mapping[str, str]:
        """Variants and their titles."""
        return self.short_rows if short and self.short_rows is not None else self.rows

    def settings(self, paper: Paper) -> list[Setting]:
        """The settings of the paper's table."""
        if "accuracy" in paper.data[self.key]:
            return paper.settings(self.key)
        return [Setting(task=task, heterogeneity="high", split="noniid") for task in TASKS]

    def recipe(
        self, setting: Setting, variant: str, *, protocol: str, seed: int, short: bool, overrides: Sequence[str]
    ) -> Recipe:
        """The recipe of a variant at a setting; `seed` is counted from the recipe's own."""
        return recipe_for(setting, variant, protocol=protocol, seed=seed, short=short, overrides=overrides)

    def blocks(self, runs: StudyRuns) -> tuple[Block, ...]:
        """Arrange the numbers."""
        blocks = []
        for heterogeneity, title in HETEROGENEITIES.items():
            settings = [setting for setting in runs.settings if setting.heterogeneity == heterogeneity]
            cells = {
                (name, setting.title): runs.cell(setting, variant, runs.paper.accuracy(runs.key, setting, variant))
                for setting in settings
                for variant, name in runs.rows.items()
            }
            if settings:
                blocks.append(Block(title=title, cells=cells))
        return tuple(blocks)

    def notes(self, runs: StudyRuns) -> list[str]:
        """Sentences on what the numbers say."""
        return []

    def figures(self, runs: StudyRuns) -> dict[str, Chart]:
        """Figures by file name."""
        return {}


class BaselineStudy(Study):
    """A last row has the mean relative improvement of FedGMR over the others."""

    def blocks(self, runs: StudyRuns) -> tuple[Block, ...]:
        """Arrange the numbers."""
        blocks, last = [], "MRI of FedGMR (%)"
        for block in super().blocks(runs):
            here = [s for s in runs.settings if HETEROGENEITIES[s.heterogeneity] == block.title]
            cells = {**block.cells, **{(last, setting.title): self._improvement(runs, setting) for setting in here}}
            blocks.append(replace(block, cells=cells, uncoloured=(last,)))
        return tuple(blocks)

    def _improvement(self, runs: StudyRuns, setting: Setting) -> Cell:
        def improvement(kind: Kind) -> Measure | None:
            measures = {variant: runs.measure(setting, variant, kind) for variant in runs.rows}
            means = {variant: measure.mean for variant, measure in measures.items() if measure is not None}
            complete = len(means) == len(runs.rows) and all(means.values())
            return Measure(mean=mean_relative_improvement(means)) if complete else None

        return Cell(
            ours=improvement("merged"),
            best=improvement("best"),
            larger=improvement("larger"),
            paper=runs.paper.mri(setting),
            stand_in=runs.stand_in(setting),
        )


class PluginStudy(Study):
    """Methods down, the steps of the plug-in across."""

    def blocks(self, runs: StudyRuns) -> tuple[Block, ...]:
        """Arrange the numbers."""
        steps = {"": "original", "+aux": "+Aux", "+aux+gmr": "+Aux+GMR"}
        cells = {}
        (setting,) = runs.settings
        for variant, title in runs.rows.items():
            _, plus, suffix = variant.partition("+")
            theirs = runs.paper.accuracy(runs.key, setting, variant)
            cells[title.partition("+")[0], steps[plus + suffix]] = runs.cell(setting, variant, theirs)
        return (Block(title=setting.long_title, cells=cells, column_name="step"),)


class PatienceStudy(Study):
    """Tasks across; without restoration, every patience (ours alone), their range and the gain of the best down."""

    def blocks(self, runs: StudyRuns) -> tuple[Block, ...]:
        """Arrange the numbers."""
        without, *patiences = runs.rows
        cells: dict[tuple[str, str], Cell] = {}
        rows = {"lowest": "lowest of these", "highest": "highest of these", "gain": "best gain"}
        for setting in runs.settings:
            column, theirs = setting.title, runs.paper.data["patience"]["tasks"][setting.task]
            cells[runs.rows[without], column] = runs.cell(setting, without, Measure(mean=theirs["without"]))
            for variant in patiences:
                cells[runs.rows[variant], column] = runs.cell(setting, variant, None)
            ours, larger = self._extremes(runs, setting, "merged"), self._extremes(runs, setting, "larger")
            stand_in = runs.stand_in(setting)
            for key, row in rows.items():
                paper = Measure(mean=theirs[key])
                cells[row, column] = Cell(ours=ours.get(key), larger=larger.get(key), paper=paper, stand_in=stand_in)
        title = HETEROGENEITIES[runs.settings[0].heterogeneity]
        return (Block(title=title, cells=cells, row_name="FedGMR", uncoloured=(rows["gain"],)),)

    def _extremes(self, runs: StudyRuns, setting: Setting, kind: Kind) -> dict[str, Measure]:
        """The range over all patiences and the gain of the best; nothing while a run is missing."""
        base, *measures = (runs.measure(setting, variant, kind) for variant in runs.rows)
        means = [measure.mean for measure in measures if measure is not None]
        if len(means) < len(measures):
            return {}
        numbers = {"lowest": Measure(mean=min(means)), "highest": Measure(mean=max(means))}
        if base is not None:
            numbers["gain"] = Measure(mean=max(means) - base.mean)
        return numbers
