"""From the runs of a table to the table: read what is finished, arrange it, say what a reader must know.

Runs are planned in `planning.py` and may be made before, between and after; what is not there is shown as missing.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedgmr.experiments.sweep import PlannedRun
from fedgmr.paper.arrangement import Findings, Found
from fedgmr.paper.communication import TICKS, communication_table
from fedgmr.paper.density_growth import growth_figures
from fedgmr.paper.grid import TASKS, Setting, recipe_for
from fedgmr.paper.heatmap import write_table
from fedgmr.paper.ims_cost import ims_cost_table
from fedgmr.paper.measurement import evaluations_around, t_star_of
from fedgmr.paper.numbers import WINDOW, Paper, read_paper
from fedgmr.paper.planning import Plan, Request
from fedgmr.paper.tables import STAND_IN_MARK, Table
from fedgmr.reporting.plots import save_figures
from fedgmr.reporting.report import figure
from fedgmr.reporting.rundir import Run, read_run
from fedgmr.settings.refusals import SettingError

# Settings that change no result, or that the paper tunes itself.
_HARMLESS = ("device=", "execution", "checkpoint", "task.options.root=", "method.restoration.patience=", "seed=")
_SHORT_ROUNDS, _SHORT_TICKS = 100, 100


def make_table(plan: Plan) -> Table:
    """The table of the runs that are finished by now."""
    findings = _findings(plan)
    return Table(
        name=plan.request.name,
        title=plan.study.title,
        about=plan.study.about,
        blocks=plan.study.arrange(findings),
        cautions=tuple(_cautions(plan, findings)),
        notes=tuple(_notes(plan, findings)),
        short=plan.request.short,
        comparable=not plan.request.short and not _changed(plan.request.overrides),
    )


def write_made(plan: Plan, table: Table, directory: Path) -> Path:
    """Write the table in all its forms, and its figures where it has any; returns the page."""
    directory.mkdir(parents=True, exist_ok=True)
    images: dict[str, bytes] = {}
    if plan.study.key == "density_growth":
        with contextlib.suppress(ModuleNotFoundError):  # without matplotlib the table has no figure
            images = save_figures(growth_figures(_findings(plan)), directory)
    caption = "Growth of accuracy by density, by stage of training."
    shown = {"Figures": "\n".join(figure(image, caption) for image in images.values())} if images else {}
    return write_table(replace(table, extra=shown), directory)


def computed_table(request: Request) -> Table:
    """A table that needs no runs; with `short` it is counted over fewer rounds."""
    if request.task or request.heterogeneity or request.split or request.seeds > 1:
        raise SettingError(f"The table {request.name} is computed as a whole: give no filters and no seeds.")
    strange = [word for word in request.overrides if not word.startswith(("network.", "seed="))]
    if strange:
        raise SettingError(f"{strange[0]} has no effect on the table {request.name}: give network.* or seed.")
    setting = Setting(task="femnist", heterogeneity="high", split="iid")
    recipe, paper = recipe_for(setting, "fedgmr", overrides=request.overrides), read_paper()
    if request.name == "ims-cost":
        rounds = _SHORT_ROUNDS if request.short else None
        return ims_cost_table(paper, rounds=rounds, settings=recipe.network, seed=recipe.seed)
    ticks = _SHORT_TICKS if request.short else TICKS
    return communication_table(paper, ticks=ticks, settings=recipe.network, seed=recipe.seed)


def _findings(plan: Plan) -> Findings:
    rows = plan.study.rows(plan.request.short)
    runs: dict[tuple[Setting, str], list[PlannedRun]] = {}
    for wanted in plan.wanted:
        runs.setdefault((wanted.setting, wanted.variant), []).append(wanted.run)
    found = {
        (setting, variant): _found(runs[setting, variant]) if (setting, variant) in runs else Found(absent="no recipe")
        for setting in plan.settings
        for variant in rows
    }
    return Findings(key=plan.study.key, paper=plan.paper, settings=plan.settings, rows=rows, found=found)


def _found(planned: Sequence[PlannedRun]) -> Found:
    runs, absent = [], "missing"
    for entry in planned:
        try:
            run = read_run(entry.directory)
        except ValueError:  # not begun, or before its first evaluation
            continue
        if run.status == "finished":
            runs.append(run)
        else:
            absent = run.status
    return Found(runs=tuple(runs), absent=absent)


def _cautions(plan: Plan, findings: Findings) -> list[str]:
    request, runs = plan.request, [run for found in findings.found.values() for run in found.runs]
    notes = []
    if request.short:
        notes.append("short runs: a shortened recipe, to see that all works; differences to the paper say nothing")
    if changed := _changed(request.overrides):
        notes.append(f"not the paper's settings: {' '.join(changed)}")
    for sentence in dict.fromkeys(str(run.summary["stand_in"]) for run in runs if run.summary.get("stand_in")):
        notes.append(f"{STAND_IN_MARK} stand-in data: {sentence}")
    return notes


def _notes(plan: Plan, findings: Findings) -> list[str]:
    request, notes = plan.request, _window_notes(plan, findings)
    for task in plan.without_recipe():
        notes.append(f"{task} has no recipe here, so its cells are the paper's alone")
    short_of = sum(0 < len(found.runs) < request.seeds for found in findings.found.values())
    if short_of:
        notes.append(f"{short_of} cells have fewer than {request.seeds} finished seeds")
    shown = {TASKS[setting.task] for setting in plan.settings}
    contradictions = [
        text
        for text in plan.paper.contradictions(plan.study.key)
        if any(title in text for title in shown) or not any(title in text for title in TASKS.values())
    ]
    return [*notes, *plan.study.remarks(findings), *contradictions]


def _window_notes(plan: Plan, findings: Findings) -> list[str]:
    """Where there are not 20 evaluations around t*."""
    if plan.study.key == "density_growth":
        return []
    fewest = min(
        (
            _window(run, plan.paper, setting.task)
            for (setting, _), found in findings.found.items()
            for run in found.runs
        ),
        default=2 * WINDOW,
    )
    if fewest == 2 * WINDOW:
        return []
    return [f"some runs have only {fewest} evaluations around t*, as many before as after, instead of {2 * WINDOW}"]


def _window(run: Run, paper: Paper, task: str) -> int:
    return len(evaluations_around(run, t_star_of(run, paper, task)))


def _changed(overrides: Sequence[str]) -> list[str]:
    return [word for word in overrides if not word.startswith(_HARMLESS)]
