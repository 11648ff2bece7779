"""From the runs of a table to the table: reads what is finished, arranges it, and adds what a reader must know.

`planning.py` plans the runs. They may be made before or after; a number whose run is not there is shown as missing.
"""

from collections.abc import Sequence
from itertools import product

from fedgmr.experiments.sweep import PlannedRun
from fedgmr.experiments.sweep.keys import changes_results
from fedgmr.paper.accuracy import evaluations_around
from fedgmr.paper.grid import TASKS
from fedgmr.paper.numbers import WINDOW
from fedgmr.paper.planning import TablePlan
from fedgmr.paper.protocols import PROTOCOLS
from fedgmr.paper.studies import CellRuns, StudyRuns
from fedgmr.paper.tables import LARGER, STAND_IN_MARK, Table
from fedgmr.reporting.records import read_run

# Settings that change no result, or that the paper tunes itself.
_HARMLESS = ("task.options.root=", "method.restoration.patience=", "seed=")


def make_table(plan: TablePlan) -> Table:
    """The table of the runs that are finished by now."""
    study, request = plan.study, plan.request
    rows = study.variants(short=request.short)
    cells = {place: _read(plan.cells[place]) for place in product(plan.settings, rows)}
    runs = StudyRuns(key=study.key, paper=plan.paper, settings=plan.settings, rows=rows, cells=cells)
    effective = [word for word in request.overrides if changes_results(word.partition("=")[0])]
    changed = [word for word in effective if not word.startswith(_HARMLESS)]
    return Table(
        name=request.name,
        title=study.title,
        about=f"{study.about} Protocol {request.protocol}: {PROTOCOLS[request.protocol].about}.",
        protocol=request.protocol,
        blocks=study.blocks(runs),
        cautions=tuple(_cautions(plan, runs, changed)),
        notes=tuple(_notes(plan, runs)),
        short=request.short,
        comparable=not request.short and not changed,
        figures=lambda: study.figures(runs),
    )


def _read(planned: Sequence[PlannedRun]) -> CellRuns:
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
    return CellRuns(runs=tuple(runs), absent=absent)


def _cautions(plan: TablePlan, runs: StudyRuns, changed: Sequence[str]) -> list[str]:
    notes = []
    if plan.request.short:
        notes.append("short runs: a shortened recipe, to see that all works; differences to the paper say nothing")
    if changed:
        notes.append(f"not the paper's settings: {' '.join(changed)}")
    found = [run for cell in runs.cells.values() for run in cell.runs]
    if any(run.summary.get("decides_on_test") for run in found):
        notes.append("decisions on the test set: these runs hold nothing out, so their accuracies are optimistic")
    sentences = [run.summary.get("stand_in") for run in found]
    notes += [f"{STAND_IN_MARK} stand-in data: {sentence}" for sentence in dict.fromkeys(filter(None, sentences))]
    return notes


def _notes(plan: TablePlan, runs: StudyRuns) -> list[str]:
    seeds, notes = plan.request.seeds, [*_view_notes(plan, runs), *_window_notes(plan, runs)]
    short_of = sum(0 < len(found.runs) < seeds for found in runs.cells.values())
    if short_of:
        notes.append(f"{short_of} cells have fewer than {seeds} finished seeds")
    shown = {TASKS[setting.task] for setting in plan.settings}
    contradictions = [
        text
        for text in plan.paper.contradictions(plan.study.key)
        if any(title in text for title in shown) or not any(title in text for title in TASKS.values())
    ]
    return [*notes, *plan.study.notes(runs), *contradictions]


def _view_notes(plan: TablePlan, runs: StudyRuns) -> list[str]:
    """Sentences on the models and metrics that the numbers are of."""
    found = [(setting, run) for (setting, _), cell in runs.cells.items() for run in cell.runs]
    notes = []
    if plan.study.at_t_star and any("views" in run.summary for _, run in found):
        notes.append(
            f"difference: the {LARGER}, at each evaluation, less the paper's number, which is made in the same way; "
            "this choice on the test set is for the comparison alone"
        )
    metrics = dict.fromkeys((setting.task, str(run.summary.get("metric", "accuracy"))) for setting, run in found)
    return [*notes, *(f"{TASKS[task]}: {metric}" for task, metric in metrics if metric != "accuracy")]


def _window_notes(plan: TablePlan, runs: StudyRuns) -> list[str]:
    """A sentence where there are not 20 evaluations around t*."""
    if not plan.study.at_t_star:
        return []
    counts = [
        len(evaluations_around(run, plan.paper.t_star(setting.task, run.summary["seconds"])))
        for (setting, _), found in runs.cells.items()
        for run in found.runs
    ]
    fewest = min(counts, default=2 * WINDOW)
    if fewest == 2 * WINDOW:
        return []
    return [f"some runs have only {fewest} evaluations around t*, as many before as after, instead of {2 * WINDOW}"]
