"""The document of results: the kept runs below a directory beside the paper, by protocol and setting.

It opens with a picture of all settings and methods (`overview.py` draws). It is made from recipe, metrics and summary
of each run alone, and says where our ranking differs from the paper's. Reasons are a person's to write, in `notes.md`
of the same directory, which is taken over word for word.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import hypot
from pathlib import Path

from fedgmr.files import RECIPE
from fedgmr.methods import PAPER, named_method
from fedgmr.paper.accuracy import mean_relative_improvement
from fedgmr.paper.grid import Setting
from fedgmr.paper.kept_runs import KeptRun, ResultRow
from fedgmr.paper.numbers import Paper
from fedgmr.paper.other_tables import growth_plan, growth_tables, other_tables
from fedgmr.paper.overview import curves_figure, overview_figure
from fedgmr.paper.protocols import PROTOCOLS
from fedgmr.paper.sub_models import SubModels
from fedgmr.paper.tables import LARGER, STAND_IN_MARK, Block, Cell, Column, Measure, Table
from fedgmr.reporting.chart import Chart
from fedgmr.reporting.quantities import format_seconds, markdown_table
from fedgmr.settings.refusals import SettingError

_NOTES = "notes.md"
_COLUMNS = (*PAPER, "fedgmr_without_restoration")  # of the picture
_HEADER = ("validation (%)", "seeds", "computed in", "device", "commit")
_WRITER = Block(title="", cells={})  # writes numbers as tables do
_ON_TEST = "Decisions are made on the test set and nothing is held out, so these accuracies are optimistic."
_ON_STAND_INS = (
    "Ours are from data that stands in for the paper's, so a difference also says how much harder or easier that data "
    "is. Methods can be compared along a line."
)
_IN_BRACKETS = (
    "Our number as the pictures have it, with the deviation over seeds where there are several, and the paper's in "
    "brackets; a cell without ours has not been run."
)
_COMMIT_DIGITS = 10


@dataclass(frozen=True, kw_only=True)
class Results:
    """The document in Markdown, and its figures by file name, drawn when called."""

    text: str
    figures: Mapping[str, Callable[[], Chart]]


def results_document(directory: Path, folder: str = "results") -> Results:
    """The document of the runs below a directory; its figures belong into `folder` beside it."""
    paper = Paper.read()
    finished, others = _read(directory, paper)
    if not finished and not others:
        raise SettingError(f"{str(directory)!r} holds no runs: give a directory with run directories below it.")
    figures: dict[str, Callable[[], Chart]] = {}
    lines = ["# Results", "", *_first_page(finished, paper, folder, figures)]
    lines += [
        "",
        "## How the numbers are made",
        "",
        "Made by `fedgmr results` from the runs kept with the project; not to be edited by hand. Accuracy at t* is the "
        "mean of the 10 evaluations before and the 10 after it, ± their standard deviation, in percent; over several "
        "seeds it is the mean, with the sample deviation over seeds in brackets. The paper's deviations are over the "
        "evaluations of one run. Differences are in points. Validation is the accuracy on the samples that the server "
        "holds out, of the best view over the last ten evaluations, or in runs without views of the final model; where "
        "several patiences were run, the best by it is ranked, except under a protocol whose recipes trials have "
        f"tuned. The {LARGER}, at each evaluation, is how the paper's numbers are made; where it is known, it is what "
        "is compared with them, and nothing else goes by it, except the order of runs that decide on the test set. A "
        "curve is of the number that its row is ordered by.",
        "",
        f"{len(finished)} finished runs, {format_seconds(sum(kept.wall_seconds for kept in finished))} of computing.",
    ]
    for protocol in PROTOCOLS:
        here = [kept for kept in finished if kept.protocol == protocol]
        lines += _chapter(protocol, here, paper, folder, figures)
        further = list(other_tables(protocol, [kept for kept in here if not kept.short], paper))
        if growth := growth_plan(protocol, directory):
            further += growth_tables(growth, folder, figures)
            others = [other for other in others if other[0] not in {run.directory for run in growth.runs}]
        lines += ["", "### The paper's other tables", "", _IN_BRACKETS, *further] if further else []
    if others:
        table = [[path.relative_to(directory).as_posix(), reason] for path, reason in others]
        lines += ["", "## Other runs", "", *markdown_table([["run", "why it is not above"], *table], words=2)]
    notes = directory / _NOTES
    if notes.is_file():
        lines += ["", "## Notes", "", notes.read_text(encoding="utf-8").strip()]
    return Results(text="\n".join(lines) + "\n", figures=figures)


def _first_page(
    finished: Sequence[KeptRun], paper: Paper, folder: str, figures: dict[str, Callable[[], Chart]]
) -> list[str]:
    """A picture for each protocol that has runs of full length; cells that nobody has run are empty."""
    lines = ["White cells have not been run; they have the paper's number alone.", *_stand_ins(finished)]
    for protocol, terms in PROTOCOLS.items():
        full = [kept for kept in finished if kept.protocol == protocol and not kept.short]
        if not full:
            continue
        chosen = {
            (setting, row.variant): replace(row.cell, ours=row.ordered_by)
            for setting in _settings(full, paper)
            for row, _ in _choices(ResultRow.group([e for e in full if e.setting == setting], setting, paper))
        }
        cells = {
            (setting, method): chosen.get((setting, method), Cell(paper=paper.first_accuracy(setting, method)))
            for setting in paper.settings("baselines")
            for method in _COLUMNS
        }
        name = f"overview-{protocol}.png"
        figures[name] = partial(overview_figure, cells, {method: named_method(method).title for method in _COLUMNS})
        done = len(chosen.keys() & cells)
        lines += ["", f"**Protocol {protocol}**: {terms.about}. {done} of {len(cells)} cells have been run."]
        lines += ["", f"![All settings and methods, protocol {protocol}]({folder}/{name})"]
    return lines


def _read(directory: Path, paper: Paper) -> tuple[list[KeptRun], list[tuple[Path, str]]]:
    """Finished runs that belong to a cell, and the other run directories with the reason why they do not."""
    finished, others = [], []
    for path in sorted(directory.rglob(RECIPE)):
        try:
            kept = KeptRun.read(path.parent, paper)
        except ValueError as error:
            others.append((path.parent, str(error)))
            continue
        if kept is None:
            others.append((path.parent, "no cell of the paper's tables"))
        elif kept.run.status != "finished":
            others.append((path.parent, kept.run.status))
        else:
            finished.append(kept)
    return finished, others


def _settings(kept: Iterable[KeptRun], paper: Paper) -> list[Setting]:
    """The settings of these runs, in the paper's order."""
    return sorted({entry.setting for entry in kept}, key=paper.settings("baselines").index)


def _stand_ins(finished: Sequence[KeptRun]) -> list[str]:
    """What stands in for what, and what that means; nothing where all data is the paper's."""
    sentences = dict.fromkeys(kept.stand_in for kept in finished if kept.stand_in)
    if not sentences:
        return []
    return ["", f"{STAND_IN_MARK} {_ON_STAND_INS}", "", *(f"- {sentence}." for sentence in sentences)]


def _chapter(
    protocol: str, kept: Sequence[KeptRun], paper: Paper, folder: str, figures: dict[str, Callable[[], Chart]]
) -> list[str]:
    """The runs of one protocol, setting by setting; nothing where there are none."""
    if not kept:
        return []
    lines = ["", f"## Protocol {protocol}: {PROTOCOLS[protocol].about}"]
    lines += _firsts([entry for entry in kept if not entry.short], paper)
    for short in (False, True):
        alike = [entry for entry in kept if entry.short is short]
        for setting in _settings(alike, paper):
            here = [entry for entry in alike if entry.setting == setting]
            lines += ["", *_section(setting, here, paper, short=short)]
            ranked = _ranked(_choices(ResultRow.group(here, setting, paper)))
            if not short and len(ranked) > 1:
                name = f"{protocol}-{setting.task}-{setting.heterogeneity}-{setting.split}.png"
                figures[name] = partial(curves_figure, ranked)
                lines += ["", f"![Accuracy over time, {setting.long_title}]({folder}/{name})"]
            models = SubModels.of(ranked, paper)
            if not short and models.levels:
                name = f"{protocol}-{setting.task}-{setting.heterogeneity}-{setting.split}-levels.png"
                figures[name] = models.figure
                lines += [*models.lines(), "", f"![Accuracy by sub-model, {setting.long_title}]({folder}/{name})"]
    return lines


def _firsts(full: Sequence[KeptRun], paper: Paper) -> list[str]:
    """In how many settings FedGMR is first of the methods that were run, and in how many a variant is above it."""
    firsts, settings, complete, above = 0, 0, 0, 0
    for setting in _settings(full, paper):
        rows = ResultRow.group([kept for kept in full if kept.setting == setting], setting, paper)
        means = {row.variant: row.ordered_by.mean for row, _ in _choices(rows)}
        others = [mean for variant, mean in means.items() if variant in PAPER and variant != "fedgmr"]
        if "fedgmr" in means and others:
            settings += 1
            complete += len(others) == len(PAPER) - 1
            firsts += means["fedgmr"] >= max(others)
            above += means["fedgmr"] < max(means[variant] for variant in means if variant.startswith("fedgmr"))
    if not settings:
        return []
    text = f"FedGMR is first in {firsts} of {settings} settings where others have been run, too (all seven: {complete})"
    return ["", text + (f"; in {above} of them a variant of it is above it." if above else ".")]


def _section(setting: Setting, kept: Sequence[KeptRun], paper: Paper, *, short: bool) -> list[str]:
    rows = ResultRow.group(kept, setting, paper)
    title = f"### {setting.long_title}" + (" (short runs: not comparable)" if short else "")
    splits = ", ".join(dict.fromkeys(entry.split for entry in kept))
    on_test = any(entry.run.summary.get("decides_on_test") for entry in kept)
    table = Table(name="", title="", about="", blocks=(_block(rows),))
    header = ["method", "settings", *(f"{name} (%)" for name in list(table.headers.values())[:-1]), "difference"]
    text = [
        title,
        "",
        f"Samples dealt to the clients: {splits}." + (f" {_ON_TEST}" if on_test else ""),
        "",
        *markdown_table([[*header, *_HEADER], *(_fields(row, table.columns) for row in rows)], words=2),
    ]
    if short:
        return text
    choices = _choices(rows)
    for _, sentence in choices:
        text += ["", sentence] if sentence else []
    ranked = _ranked(choices)
    means = {row.variant: row.compared.mean for row in ranked if row.variant in PAPER}
    if len(means) == len(PAPER):
        ours, theirs = mean_relative_improvement(means), paper.mri(setting).mean
        text += ["", f"Mean relative improvement of FedGMR: {ours:.2f} % (paper {theirs:.2f} %)."]
    return [*text, *_ranking(ranked)]


def _choices(rows: Sequence[ResultRow]) -> list[tuple[ResultRow, str]]:
    """The row of each variant that is ranked, and a sentence on the choice where there are several.

    These have the recipe's settings apart from the patience. The one with the best validation on the seeds that all
    have is ranked, else the recipe's own: never by the test set. Where trials have chosen the recipe's settings, whole
    runs with others are a study, and would be more tuning than the other methods had.
    """
    by_variant: dict[str, list[ResultRow]] = {}
    for row in sorted(rows, key=lambda row: bool(row.runs[0].changes)):
        if row.cell.paper and row.runs[0].faithful:
            by_variant.setdefault(row.variant, []).append(row)
    choices = []
    for alike in by_variant.values():
        if PROTOCOLS[alike[0].runs[0].protocol].tuned and not alike[0].runs[0].changes:
            del alike[1:]
        shared = set.intersection(*(row.seeds for row in alike))
        known = [(value, row) for row in alike if (value := row.validation(shared)) is not None]
        chosen, reason = alike[0], "not all were validated on the same seeds"
        if len(known) == len(alike):
            chosen = max(known, key=lambda pair: pair[0])[1]
            values = ", ".join(f"{row.settings} {value:.2f} %" for value, row in known)
            seeds = ", ".join(map(str, sorted(shared)))
            reason = f"on held-out samples, with the seeds that all have ({seeds}): {values}"
        sentence = f"{chosen.title} is ranked with {chosen.settings}: {reason}." if len(alike) > 1 else ""
        choices.append((chosen, sentence))
    return choices


def _ranked(choices: Iterable[tuple[ResultRow, str]]) -> list[ResultRow]:
    """The rows of the picture's methods; other variants are compared in the tables that they belong to."""
    return [row for row, _ in choices if row.variant in _COLUMNS]


def _ranking(rows: Sequence[ResultRow]) -> list[str]:
    """Both orders and every pair that stands the other way round; nothing for a single method."""
    if len(rows) < 2:
        return []
    ours = sorted(rows, key=lambda row: -row.compared.mean)
    paper = {row.variant: row.cell.paper for row in rows if row.cell.paper}  # all: no other row is ranked
    theirs = sorted(rows, key=lambda row: -paper[row.variant].mean)
    swapped = []
    for better, worse in combinations(ours, 2):
        first, second = paper[better.variant], paper[worse.variant]
        if first.mean < second.mean:
            here, there = _gap(better.compared, worse.compared), _gap(second, first)
            numbers = f"{better.compared.mean:.2f} and {worse.compared.mean:.2f}"
            swapped.append(
                f"- {better.title} is above {worse.title} here ({numbers}, "
                f"{here}) and below it in the paper ({first.mean:.2f} and {second.mean:.2f}, {there})."
            )
    by = f" by the {LARGER}" if any(row.cell.larger for row in rows) else ""
    verdict = (
        f"The ranking{by} differs from the paper's in {len(swapped)} of {len(rows) * (len(rows) - 1) // 2} pairs:"
        if swapped
        else f"The ranking{by} is the paper's."
    )
    orders = [
        f"- {name}: {' > '.join(row.title for row in order)}" for name, order in (("Ours", ours), ("Paper", theirs))
    ]
    return ["", verdict, "", *orders, *swapped]


def _gap(better: Measure, worse: Measure) -> str:
    """Whether a lead is more than the two deviations together."""
    deviations = [measure.seeds_std if measure.seeds_std is not None else measure.std for measure in (better, worse)]
    noise = hypot(*(deviation or 0.0 for deviation in deviations))
    return "within the deviations" if better.mean - worse.mean <= noise else "more than the deviations"


def _block(rows: Sequence[ResultRow]) -> Block:
    return Block(title="", cells={(str(number), ""): row.cell for number, row in enumerate(rows)})


def _fields(row: ResultRow, columns: Sequence[Column]) -> list[str]:
    summaries = [entry.run.summary for entry in row.runs]
    seeds = sorted(seed for seed in row.seeds if row.validation({seed}) is not None)
    mean = row.validation(seeds)
    validation = "" if mean is None else f"{mean:.2f}"
    if mean is not None and len(seeds) < len(row.seeds):
        validation += f" (seed {', '.join(map(str, seeds))})"
    return [
        row.title,
        row.runs[0].changes or "the recipe's",
        *(_WRITER.text(row.cell, column) for column in columns[:-1]),
        _WRITER.difference_text(row.cell) + ("" if row.runs[0].faithful else " (not comparable)"),
        validation,
        ", ".join(str(summary["seed"]) for summary in summaries),
        format_seconds(statistics.fmean(entry.wall_seconds for entry in row.runs)),
        ", ".join(dict.fromkeys(str(summary.get("device") or "?") for summary in summaries)),
        ", ".join(dict.fromkeys(_commit(summary.get("commit")) for summary in summaries)),
    ]


def _commit(commit: object) -> str:
    if not isinstance(commit, str):
        return "?"
    digits, dash, mark = commit.partition("-")
    return digits[:_COMMIT_DIGITS] + dash + mark
