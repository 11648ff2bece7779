"""From runs to the blocks of a table: our number and the paper's in every cell.

Each function arranges one kind of table; `studies.py` says which is used for which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedgmr.paper.grid import HETEROGENEITIES, Setting
from fedgmr.paper.measurement import accuracy_at_t_star, mean_relative_improvement
from fedgmr.paper.numbers import Paper
from fedgmr.paper.tables import Block, Cell, Measure
from fedgmr.reporting.rundir import Run


@dataclass(frozen=True, kw_only=True)
class Found:
    """The finished runs of a variant at a setting, one per seed, or why there are none."""

    runs: tuple[Run, ...] = ()
    absent: str = "missing"

    @property
    def stand_in(self) -> bool:
        """Whether the data of any of them stands in for other data."""
        return any(run.summary.get("stand_in") for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All that was found for a table."""

    key: str  # of the table in paper.yaml
    paper: Paper
    settings: Sequence[Setting]
    rows: Mapping[str, str]  # variant -> title
    found: Mapping[tuple[Setting, str], Found]

    def measure(self, setting: Setting, variant: str) -> Measure | None:
        """Our accuracy at t*."""
        runs = self.found[setting, variant].runs
        return accuracy_at_t_star(runs, self.paper, setting.task) if runs else None

    def cell(self, setting: Setting, variant: str, theirs: Measure | None) -> Cell:
        """Our accuracy beside `theirs`."""
        found = self.found[setting, variant]
        return Cell(ours=self.measure(setting, variant), paper=theirs, absent=found.absent, stand_in=found.stand_in)


def grid_blocks(findings: Findings) -> tuple[Block, ...]:
    """One block per heterogeneity: variants down, tasks and splits across."""
    blocks = []
    for heterogeneity, title in HETEROGENEITIES.items():
        settings = [setting for setting in findings.settings if setting.heterogeneity == heterogeneity]
        if not settings:
            continue
        cells = {
            (name, setting.title): findings.cell(
                setting, variant, findings.paper.accuracy(findings.key, setting, variant)
            )
            for setting in settings
            for variant, name in findings.rows.items()
        }
        columns = tuple(setting.title for setting in settings)
        blocks.append(Block(title=title, rows=tuple(findings.rows.values()), columns=columns, cells=cells))
    return tuple(blocks)


def baseline_blocks(findings: Findings) -> tuple[Block, ...]:
    """The grid with a last row: the mean relative improvement of FedGMR over the others."""
    blocks, last = [], "MRI of FedGMR (%)"
    for block in grid_blocks(findings):
        cells = dict(block.cells)
        for setting in findings.settings:
            if HETEROGENEITIES[setting.heterogeneity] == block.title:
                cells[last, setting.title] = _improvement(findings, setting)
        blocks.append(replace(block, rows=(*block.rows, last), cells=cells, uncoloured=(last,)))
    return tuple(blocks)


def plugin_blocks(findings: Findings) -> tuple[Block, ...]:
    """Methods down, the steps of the plug-in across."""
    steps = {"": "original", "+aux": "+Aux", "+aux+gmr": "+Aux+GMR"}
    cells, rows = {}, []
    (setting,) = findings.settings
    for variant, title in findings.rows.items():
        _, plus, suffix = variant.partition("+")
        row = title.partition("+")[0]
        rows.append(row)
        theirs = findings.paper.accuracy(findings.key, setting, variant)
        cells[row, steps[plus + suffix]] = findings.cell(setting, variant, theirs)
    return (
        Block(
            title=setting.long_title,
            rows=tuple(dict.fromkeys(rows)),
            columns=tuple(steps.values()),
            cells=cells,
            column_name="step",
        ),
    )


def patience_blocks(findings: Findings) -> tuple[Block, ...]:
    """Per task: without restoration, every patience (single ones are ours alone), their range, the gain of the best."""
    without, *sweep = findings.rows
    cells: dict[tuple[str, str], Cell] = {}
    rows = {"lowest": "lowest of these", "highest": "highest of these", "gain": "best gain"}
    for setting in findings.settings:
        column, theirs = setting.title, findings.paper.data["patience"]["tasks"][setting.task]
        cells[findings.rows[without], column] = findings.cell(setting, without, Measure(mean=theirs["without"]))
        for variant in sweep:
            cells[findings.rows[variant], column] = findings.cell(setting, variant, None)
        ours = _patience_numbers(findings, setting, without, sweep)
        stand_in = any(findings.found[setting, variant].stand_in for variant in findings.rows)
        for key, row in rows.items():
            cells[row, column] = Cell(ours=ours.get(key), paper=Measure(mean=theirs[key]), stand_in=stand_in)
    return (
        Block(
            title=f"{HETEROGENEITIES[findings.settings[0].heterogeneity]}",
            rows=(*findings.rows.values(), *rows.values()),
            columns=tuple(setting.title for setting in findings.settings),
            cells=cells,
            row_name="FedGMR",
            uncoloured=(rows["gain"],),
        ),
    )


def _patience_numbers(findings: Findings, setting: Setting, without: str, sweep: Sequence[str]) -> dict[str, Measure]:
    """The range over the whole sweep and the gain; nothing while a run of it is missing."""
    measures = [findings.measure(setting, variant) for variant in sweep]
    means = [measure.mean for measure in measures if measure is not None]
    base = findings.measure(setting, without)
    if len(means) < len(sweep):
        return {}
    numbers = {"lowest": Measure(mean=min(means)), "highest": Measure(mean=max(means))}
    if base is not None:
        numbers["gain"] = Measure(mean=max(means) - base.mean)
    return numbers


def _improvement(findings: Findings, setting: Setting) -> Cell:
    measures = {variant: findings.measure(setting, variant) for variant in findings.rows}
    means = {variant: measure.mean for variant, measure in measures.items() if measure is not None}
    ours = None
    if len(means) == len(findings.rows) and all(means.values()):
        ours = Measure(mean=mean_relative_improvement(means))
    stand_in = any(findings.found[setting, variant].stand_in for variant in findings.rows)
    return Cell(ours=ours, paper=findings.paper.mri(setting), stand_in=stand_in)
