"""The document of results: what the runs below a directory say, beside the paper, setting by setting.

Made from recipe, metrics and summary of each run alone. It says where our ranking differs from the paper's; reasons are
a person's to write, in `notes.md` of the same directory, which is taken over word for word. `placement.py` decides
which cell a run belongs to.
"""

import statistics
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgmr.files import RECIPE
from fedgmr.methods import PAPER
from fedgmr.paper.grid import Setting
from fedgmr.paper.measurement import accuracy_at_t_star, mean_relative_improvement
from fedgmr.paper.numbers import Paper, read_paper
from fedgmr.paper.placement import Placed, paper_accuracy, place_run
from fedgmr.paper.ranking import Ranked, ranking_lines
from fedgmr.paper.tables import STAND_IN_MARK, Block, Cell, markdown_rows
from fedgmr.reporting.quantities import format_seconds
from fedgmr.settings.refusals import SettingError

NOTES = "notes.md"
_HEADER = (
    *("method", "settings", "ours (%)", "paper (%)", "difference", "validation (%)", "seeds"),
    *("computed in", "device", "commit"),
)
_WRITER = Block(title="", rows=(), columns=(), cells={})  # writes numbers as tables do
_COMMIT_DIGITS = 10


@dataclass(frozen=True, kw_only=True)
class Line:
    """The runs of one variant with the same settings, one per seed."""

    placed: tuple[Placed, ...]
    cell: Cell

    @property
    def variant(self) -> str:
        """What was run."""
        return self.placed[0].variant

    @property
    def title(self) -> str:
        """For people."""
        method, *changes = self.variant.split("/")
        title = self.placed[0].run.title
        return f"{title}, {', '.join(change.upper() for change in changes)}" if changes else title or method

    @property
    def settings(self) -> str:
        """What differs from the recipe."""
        return self.placed[0].changes or "the recipe's settings"

    @property
    def seeds(self) -> set[int]:
        """Of the runs."""
        return {int(placed.run.summary["seed"]) for placed in self.placed}

    def validation(self, seeds: Container[int]) -> float | None:
        """Mean accuracy of these seeds' final models on held-out samples, in percent; None where a run has none."""
        summaries = [placed.run.summary for placed in self.placed if int(placed.run.summary["seed"]) in seeds]
        found = [summary.get("validation_accuracy") for summary in summaries]
        known = [100 * float(value) for value in found if value is not None]
        return statistics.fmean(known) if known and len(known) == len(found) else None


def results_document(directory: Path) -> str:
    """The document in Markdown."""
    paper = read_paper()
    finished, others = _read(directory, paper)
    if not finished and not others:
        raise SettingError(f"{str(directory)!r} holds no runs: give a directory with run directories below it.")
    lines = [
        "# Results",
        "",
        "Made by `fedgmr results` from the runs kept with the project; not to be edited by hand. Accuracy at t* is the "
        "mean of the 10 evaluations before and the 10 after it, ± their standard deviation, in percent; over several "
        "seeds it is the mean, with the sample deviation over seeds in brackets. The paper's deviations are over the "
        "evaluations of one run. Differences are in points. Validation is the final model's accuracy on the samples "
        "that the server holds out; where several patiences were run, the best by it is ranked.",
        "",
        *_overview(finished, paper),
    ]
    for short in (False, True):
        alike = [placed for placed in finished if bool(placed.run.summary.get("short")) is short]
        for setting in _settings(alike, paper):
            here = [placed for placed in alike if placed.setting == setting]
            lines += ["", *_section(setting, here, paper, short=short)]
    lines += _rest(others, directory)
    notes = directory / NOTES
    if notes.is_file():
        lines += ["", "## Notes", "", notes.read_text(encoding="utf-8").strip()]
    return "\n".join(lines) + "\n"


def _read(directory: Path, paper: Paper) -> tuple[list[Placed], list[tuple[Path, str]]]:
    """Finished runs in their places, and the other run directories with the reason why they have none."""
    finished, others = [], []
    for path in sorted(directory.rglob(RECIPE)):
        try:
            placed = place_run(path.parent, paper)
        except ValueError as error:
            others.append((path.parent, str(error)))
            continue
        if placed is None:
            others.append((path.parent, "no cell of the paper's tables"))
        elif placed.run.status != "finished":
            others.append((path.parent, placed.run.status))
        else:
            finished.append(placed)
    return finished, others


def _settings(placed: Iterable[Placed], paper: Paper) -> list[Setting]:
    """Their settings, in the paper's order."""
    return sorted({p.setting for p in placed}, key=paper.settings("baselines").index)


def _overview(finished: Sequence[Placed], paper: Paper) -> list[str]:
    full = [placed for placed in finished if not placed.run.summary.get("short")]
    wall = sum(float(placed.run.summary.get("wall_seconds") or 0.0) for placed in finished)
    lines = [f"{len(finished)} finished runs, {format_seconds(wall)} of computing."]
    first = [_is_first(setting, full, paper) for setting in _settings(full, paper)]
    counted = [answer for answer in first if answer is not None]
    if counted:
        lines.append(f"FedGMR is first in {sum(counted)} of {len(counted)} settings where it and others were run.")
    stand_ins = dict.fromkeys(str(p.run.summary["stand_in"]) for p in finished if p.run.summary.get("stand_in"))
    return [*lines, *(f"\n{STAND_IN_MARK} Stand-in data: {sentence}." for sentence in stand_ins)]


def _is_first(setting: Setting, placed: Sequence[Placed], paper: Paper) -> bool | None:
    ranked = _ranked(_lines([p for p in placed if p.setting == setting], setting, paper))
    baselines = [entry for entry in ranked if entry.key in PAPER]
    if len(baselines) < 2 or "fedgmr" not in {entry.key for entry in baselines}:
        return None
    return max(baselines, key=lambda entry: entry.ours.mean).key == "fedgmr"


def _section(setting: Setting, placed: Sequence[Placed], paper: Paper, *, short: bool) -> list[str]:
    lines = _lines(placed, setting, paper)
    title = f"## {setting.long_title}" + (" (short runs: not comparable)" if short else "")
    splits = ", ".join(dict.fromkeys(p.split for p in placed))
    text = [
        title,
        "",
        f"Samples dealt to the clients: {splits}.",
        "",
        *markdown_rows(_HEADER, [_row(line) for line in lines], left=2),
    ]
    if short:
        return text
    for alike in _alike(lines).values():
        text += _choice(alike)
    ranked = _ranked(lines)
    means = {entry.key: entry.ours.mean for entry in ranked if entry.key in PAPER}
    if len(means) == len(PAPER):
        theirs = paper.mri(setting).mean
        ours = mean_relative_improvement(means)
        text += ["", f"Mean relative improvement of FedGMR: {ours:.2f} % (paper {theirs:.2f} %)."]
    return [*text, *ranking_lines(ranked)]


def _lines(placed: Sequence[Placed], setting: Setting, paper: Paper) -> list[Line]:
    """One line per variant and settings, best first."""
    groups: dict[tuple[str, str, str, str], dict[int, Placed]] = {}
    for entry in placed:
        key = (entry.variant, entry.changes, entry.split, str(entry.run.summary.get("stand_in") or ""))
        groups.setdefault(key, {}).setdefault(int(entry.run.summary["seed"]), entry)
    lines = []
    for by_seed in groups.values():
        members = tuple(by_seed[seed] for seed in sorted(by_seed))
        runs = [member.run for member in members]
        theirs = paper_accuracy(paper, setting, members[0].variant)
        stand_in = bool(runs[0].summary.get("stand_in"))
        ours = accuracy_at_t_star(runs, paper, setting.task)
        lines.append(Line(placed=members, cell=Cell(ours=ours, paper=theirs, stand_in=stand_in)))
    return sorted(lines, key=lambda line: -line.cell.ours.mean if line.cell.ours else 0.0)


def _ranked(lines: Sequence[Line]) -> list[Ranked]:
    """The lines that can be ranked: the recipe's settings but for the patience, of which one is chosen.

    The one with the best validation on the seeds that all have, else the recipe's own: never by the test set.
    """
    return [_as_ranked(_chosen(alike)) for alike in _alike(lines).values()]


def _alike(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """By variant: the lines that can be ranked, the recipe's own settings first."""
    by_variant: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: bool(line.placed[0].changes)):
        if line.cell.ours and line.cell.paper and line.placed[0].faithful:
            by_variant.setdefault(line.variant, []).append(line)
    return by_variant


def _validated(alike: Sequence[Line]) -> list[tuple[float, Line]] | None:
    """Each line's validation on the seeds that all have; None where one has none."""
    shared = set.intersection(*(line.seeds for line in alike))
    found = [(line.validation(shared), line) for line in alike]
    known = [(value, line) for value, line in found if value is not None]
    return known if len(known) == len(found) else None


def _chosen(alike: Sequence[Line]) -> Line:
    known = _validated(alike)
    return alike[0] if known is None else max(known, key=lambda pair: pair[0])[1]


def _choice(alike: Sequence[Line]) -> list[str]:
    """How one of several lines of a method was chosen for the ranking."""
    if len(alike) < 2:
        return []
    chosen, known = _chosen(alike), _validated(alike)
    if known is None:
        reason = "not all were validated on the same seeds"
    else:
        seeds = ", ".join(map(str, sorted(set.intersection(*(line.seeds for line in alike)))))
        values = ", ".join(f"{line.settings} {value:.2f} %" for value, line in known)
        reason = f"on held-out samples, with the seeds that all have ({seeds}): {values}"
    return ["", f"{chosen.title} is ranked with {chosen.settings}: {reason}."]


def _as_ranked(line: Line) -> Ranked:
    assert line.cell.ours is not None
    assert line.cell.paper is not None
    return Ranked(key=line.variant, title=line.title, ours=line.cell.ours, paper=line.cell.paper)


def _row(line: Line) -> list[str]:
    summaries = [placed.run.summary for placed in line.placed]
    wall = statistics.fmean(float(summary.get("wall_seconds") or 0.0) for summary in summaries)
    return [
        line.title,
        line.placed[0].changes or "the recipe's",
        _WRITER.ours_text(line.cell),
        _WRITER.measure_text(line.cell.paper),
        _WRITER.difference_text(line.cell) + ("" if line.placed[0].faithful else " (not comparable)"),
        _validation_text(line),
        ", ".join(str(summary["seed"]) for summary in summaries),
        format_seconds(wall),
        _joined(str(summary.get("device") or "?") for summary in summaries),
        _joined(_commit(summary.get("commit")) for summary in summaries),
    ]


def _validation_text(line: Line) -> str:
    """The mean over the seeds that were validated, and which these are if others were not."""
    seeds = sorted(seed for seed in line.seeds if line.validation({seed}) is not None)
    mean = line.validation(seeds)
    if mean is None:
        return ""
    return f"{mean:.2f}" + ("" if len(seeds) == len(line.seeds) else f" (seed {', '.join(map(str, seeds))})")


def _commit(commit: object) -> str:
    if not isinstance(commit, str):
        return "?"
    digits, dash, mark = commit.partition("-")
    return digits[:_COMMIT_DIGITS] + dash + mark


def _joined(texts: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _rest(others: Sequence[tuple[Path, str]], directory: Path) -> list[str]:
    if not others:
        return []
    rows = [[path.relative_to(directory).as_posix(), reason] for path, reason in others]
    return ["", "## Other runs", "", *markdown_rows(["run", "why it is not above"], rows, left=2)]
