"""The paper's figure of accuracy growth by density: every client at one fixed density, one run per density.

Time is merges here (A42), one per virtual second. Links are so fast that everybody reports to every merge, so runs
differ in density alone. Updates are averaged with zeros elsewhere: since all hold the same coordinates, the global
model is their sub-model, and that is what is tested. The slope of a stage is the least-squares slope of accuracy over
merges, in points per 100 merges; stages are shares of the run. The paper has no numbers for it, only sentences.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedgmr.fleets.network import Link
from fedgmr.fleets.presets import FleetSettings
from fedgmr.paper.arrangement import Findings
from fedgmr.paper.grid import Setting, recipe_for
from fedgmr.paper.growth import growth_figure
from fedgmr.paper.tables import Block, Cell, Measure
from fedgmr.recipe import Recipe
from fedgmr.reporting.rundir import Run
from fedgmr.server.aggregation import ZeroPadded
from fedgmr.server.coordination import SemiAsynchronous

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DENSITIES = (0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 0.9, 1.0)
MERGES, MERGES_SHORT = 5000, 39
STAGES = {"early": (0.0, 0.1), "middle": (0.1, 0.5), "late": (0.5, 1.0)}
_FAST = 1e6  # MiB/s: transfers take no time
_CLIENTS = 10
_POINTS = 201  # at which a curve is read for a slope
_FINAL = 10  # evaluations


def growth_variants() -> dict[str, str]:
    """Variant and title of every density."""
    return {f"density={density}": f"density {density:g}" for density in DENSITIES}


def growth_recipe(setting: Setting, variant: str, *, seed: int, short: bool, overrides: Sequence[str]) -> Recipe:
    """The recipe of one density; `seconds=` among the overrides sets the number of merges."""
    density = float(variant.partition("=")[2])
    recipe = recipe_for(setting, "fedgmr_without_restoration", seed=seed, short=short, overrides=overrides)
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
        network=replace(recipe.network, server_rate=_FAST, noise=0.0),
    )


def growth(run: Run, first: float, last: float) -> float:
    """Points of accuracy per 100 merges between two shares of the run."""
    ticks = run.history.tick.astype(np.float64)
    grid = np.linspace(first * ticks[-1], last * ticks[-1], _POINTS)
    curve = 100 * np.interp(grid, ticks, run.history.accuracy)
    return float(100 * np.polyfit(grid, curve, 1)[0])


def growth_blocks(findings: Findings) -> tuple[Block, ...]:
    """One block per task: densities down, the slope of every stage and the final accuracy across."""
    columns = {name: f"{name}, {first:.0%} to {last:.0%} of the merges" for name, (first, last) in STAGES.items()}
    final = "accuracy at the end (%)"
    blocks = []
    for setting in findings.settings:
        cells = {}
        for variant, row in findings.rows.items():
            found = findings.found[setting, variant]
            for name, span in STAGES.items():
                cells[row, columns[name]] = _cell(found.runs, [growth(run, *span) for run in found.runs], found.absent)
            ends = [float(100 * run.history.accuracy[-_FINAL:].mean()) for run in found.runs]
            cells[row, final] = _cell(found.runs, ends, found.absent)
        blocks.append(
            Block(
                title=setting.long_title,
                rows=tuple(findings.rows.values()),
                columns=(*columns.values(), final),
                cells=cells,
                row_name="density",
                column_name="stage",
                digits=3,
            )
        )
    return tuple(blocks)


def growth_notes(findings: Findings) -> list[str]:
    """What the paper says of its figure, and what the slopes here say."""
    told, notes = findings.paper.data["density_growth"], []
    for setting, block in zip(findings.settings, growth_blocks(findings), strict=True):
        early, _, late, _ = block.columns
        steepest = [_steepest(block, column) for column in (early, late)]
        if None in steepest:
            continue
        notes.append(
            f"{setting.title}: accuracy grows fastest at {steepest[0]} in the early stage (paper: up to "
            f"{told['early'][setting.task]:g}) and at {steepest[1]} in the late one (paper: from {told['late']:g})"
        )
    return notes


def growth_figures(findings: Findings) -> "dict[str, Figure]":
    """One figure per task whose densities are all there, by file name."""
    figures = {}
    for setting, block in zip(findings.settings, growth_blocks(findings), strict=True):
        slopes = {}
        for stage, column in zip(STAGES, block.columns, strict=False):  # the last column is no slope
            measures = [block.cells[row, column].ours for row in block.rows]
            slopes[stage] = [measure.mean for measure in measures if measure is not None]
        if all(len(values) == len(DENSITIES) for values in slopes.values()):
            figures[f"growth-{setting.task}"] = growth_figure(f"{setting.title}: growth by density", DENSITIES, slopes)
    return figures


def _steepest(block: Block, column: str) -> str | None:
    slopes = {row: cell.ours.mean for c, row, cell in block.filled() if c == column and cell.ours}
    return max(slopes, key=lambda row: slopes[row]) if len(slopes) == len(block.rows) else None


def _cell(runs: Sequence[Run], values: Sequence[float], absent: str) -> Cell:
    stand_in = any(run.summary.get("stand_in") for run in runs)
    if not values:
        return Cell(absent=absent)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    ours = Measure(mean=float(np.mean(values)), seeds=len(values), seeds_std=spread)
    return Cell(ours=ours, stand_in=stand_in)
