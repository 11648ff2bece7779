"""The paper's figure of accuracy growth by density: every client at one fixed density, one run per density.

Time is merges here (A42), one per virtual second. Links are so fast that everybody reports to every merge, so runs
differ in density alone. Updates are averaged with zeros elsewhere: because all clients hold the same coordinates, the
global model is their sub-model, and that is what is tested. The slope of a stage is the least-squares slope of accuracy
over merges, in points per 100 merges; stages are shares of the run. The paper gives no numbers, only sentences.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedgmr.fleets.links import Link
from fedgmr.fleets.presets import FleetSettings
from fedgmr.paper.grid import Setting, recipe_for
from fedgmr.paper.studies import CellRuns, Study, StudyRuns
from fedgmr.paper.tables import Block, Cell, Measure
from fedgmr.recipe import Recipe
from fedgmr.reporting.chart import COLOURS, DASHES, FAINT, Chart
from fedgmr.reporting.records import Run
from fedgmr.server.aggregation import ZeroPadded
from fedgmr.server.coordination import SemiAsynchronous

DENSITIES = (0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 0.9, 1.0)
MERGES, MERGES_SHORT = 5000, 39
_STAGES = {"early": (0.0, 0.1), "middle": (0.1, 0.5), "late": (0.5, 1.0)}
_FAST = 1e6  # MiB/s: transfers take no time
_CLIENTS = 10
_POINTS = 201  # at which a curve is read for a slope
_FINAL = 10  # evaluations


class GrowthStudy(Study):
    """One block per task: densities down, the slope of every stage and the final accuracy across."""

    def recipe(
        self, setting: Setting, variant: str, *, protocol: str, seed: int, short: bool, overrides: Sequence[str]
    ) -> Recipe:
        """The recipe of one density; `seconds=` among the overrides sets the number of merges."""
        density = float(variant.partition("=")[2])
        base = "fedgmr_without_restoration"
        recipe = recipe_for(setting, base, protocol=protocol, seed=seed, short=short, overrides=overrides)
        link = Link(down=_FAST, up=_FAST, density=density)
        method = replace(
            recipe.method,
            title=f"density {density:g}",
            ladder=tuple(sorted({density, 1.0})),
            aggregation=ZeroPadded(),
            coordination=SemiAsynchronous(period=1.0),
        )
        given = any(word.startswith("seconds=") for word in overrides)
        return replace(
            recipe,
            name=f"{recipe.name}-growth",
            method=method,
            seconds=recipe.seconds if given else float(MERGES_SHORT if short else MERGES),
            fleet=FleetSettings(name="custom", links=(link,) * _CLIENTS),
            network=replace(recipe.network, server_rate=_FAST, noise=0.0, server_noise=0.0, merge_seconds=0.0),
        )

    def blocks(self, runs: StudyRuns) -> tuple[Block, ...]:
        """Arrange the numbers."""
        columns = {name: f"{name}, {first:.0%} to {last:.0%} of the merges" for name, (first, last) in _STAGES.items()}
        final = "accuracy at the end (%)"
        blocks = []
        for setting in runs.settings:
            cells = {}
            for variant, row in runs.rows.items():
                found = runs.cells[setting, variant]
                for name, span in _STAGES.items():
                    cells[row, columns[name]] = _cell(found, [slope(run, *span) for run in found.runs])
                cells[row, final] = _cell(
                    found, [float(100 * run.history.accuracy[-_FINAL:].mean()) for run in found.runs]
                )
            block = Block(title=setting.long_title, cells=cells, row_name="density", column_name="stage", digits=3)
            blocks.append(block)
        return tuple(blocks)

    def notes(self, runs: StudyRuns) -> list[str]:
        """Sentences on the paper's figure and on the slopes here."""
        told, notes = runs.paper.data["density_growth"], []
        for setting, block in zip(runs.settings, self.blocks(runs), strict=True):
            early, _, late, _ = block.columns
            steepest = [_steepest(block, column) for column in (early, late)]
            if None not in steepest:
                notes.append(
                    f"{setting.title}: accuracy grows fastest at {steepest[0]} in the early stage (paper: up to "
                    f"{told['early'][setting.task]:g}) and at {steepest[1]} in the late one (paper: from "
                    f"{told['late']:g})"
                )
        return notes

    def figures(self, runs: StudyRuns) -> dict[str, Chart]:
        """One figure per task whose densities are all there, by file name."""
        figures = {}
        for setting, block in zip(runs.settings, self.blocks(runs), strict=True):
            slopes = {}
            for stage, column in zip(_STAGES, block.columns, strict=False):  # the last column has no slope
                measures = [block.cells[row, column].ours for row in block.rows]
                slopes[stage] = [measure.mean for measure in measures if measure is not None]
            if all(len(values) == len(DENSITIES) for values in slopes.values()):
                figures[f"growth-{setting.task}"] = _figure(f"{setting.title}: growth by density", slopes)
        return figures


def slope(run: Run, first: float, last: float) -> float:
    """Points of accuracy per 100 merges between two shares of the run."""
    ticks = run.history.tick.astype(np.float64)
    grid = np.linspace(first * ticks[-1], last * ticks[-1], _POINTS)
    curve = 100 * np.interp(grid, ticks, run.history.accuracy)
    return float(100 * np.polyfit(grid, curve, 1)[0])


def _steepest(block: Block, column: str) -> str | None:
    slopes = {row: cell.ours.mean for c, row, cell in block.filled() if c == column and cell.ours}
    return max(slopes, key=lambda row: slopes[row]) if len(slopes) == len(block.rows) else None


def _cell(found: CellRuns, values: Sequence[float]) -> Cell:
    if not values:
        return Cell(absent=found.absent)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    ours = Measure(mean=float(np.mean(values)), seeds=len(values), seeds_std=spread)
    return Cell(ours=ours, stand_in=found.stand_in)


def _figure(title: str, slopes: dict[str, list[float]]) -> Chart:
    """One line per stage; stages differ by orders of magnitude, so each is drawn in percent of its largest slope."""
    chart = Chart(title, 3.8)
    axes = chart.axes
    for index, (stage, values) in enumerate(slopes.items()):
        largest = max(values)
        shown = [100 * value / largest if largest > 0 else 0.0 for value in values]
        style = {"color": COLOURS[index], "linestyle": DASHES[index], "marker": "."}
        axes.plot(DENSITIES, shown, label=f"{stage} (largest {largest:.3g})", **style)  # type: ignore[arg-type]
    axes.set(ylabel="growth, % of the stage's largest", ylim=(None, 105))
    axes.axhline(0.0, linewidth=0.8, color=FAINT, zorder=0)
    chart.density_axis(DENSITIES)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False, fontsize=9)
    return chart
