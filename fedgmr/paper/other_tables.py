"""The paper's tables behind the first one, in the document of results: from the kept runs, as their studies arrange it.

A cell that nobody has run has the paper's number alone, as in the picture of the first table. Read next: `studies.py`;
`results.py`, the document.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedgmr.paper.grid import Setting, recipe_for
from fedgmr.paper.growth import GrowthStudy
from fedgmr.paper.kept_runs import PATIENCE, KeptRun
from fedgmr.paper.making import make_table
from fedgmr.paper.numbers import Paper
from fedgmr.paper.planning import Request, TablePlan, plan_table, studies
from fedgmr.paper.studies import CellRuns, StudyRuns
from fedgmr.paper.tables import Block, Cell, Column
from fedgmr.reporting.chart import Chart
from fedgmr.reporting.quantities import markdown_table
from fedgmr.reporting.records import Run
from fedgmr.server.restoration import Saturation

_FIRST = "baselines"
_GROWTH = "density-growth"


def other_tables(protocol: str, kept: Sequence[KeptRun], paper: Paper) -> Iterator[str]:
    """The lines of the tables that these runs of a protocol belong to, settings down and variants across."""
    found = _by_cell(protocol, kept)
    for study in studies().values():
        if study.name == _FIRST or isinstance(study, GrowthStudy):
            continue
        rows = study.variants(short=False)
        here = [s for s in study.settings(paper) if any((s, variant) in found for variant in rows)]
        if not here:
            continue
        cells = {(s, variant): CellRuns(runs=tuple(found.get((s, variant), ()))) for s in here for variant in rows}
        runs = StudyRuns(key=study.key, paper=paper, settings=here, rows=rows, cells=cells)
        yield from ("", f"#### {study.title}")
        for block in study.blocks(runs):
            yield from ("", f"{block.title}:", "", *_lines(block))


def growth_plan(protocol: str, directory: Path) -> TablePlan | None:
    """The runs of the growth of accuracy by density, which belong to no cell; they are found by their names."""
    if not any(directory.glob(f"{protocol}-*-growth-*")):
        return None
    return plan_table(Request(name=_GROWTH, protocol=protocol), directory)


def growth_tables(plan: TablePlan, folder: str, figures: dict[str, Callable[[], Chart]]) -> Iterator[str]:
    """The lines of their tables, where any has ended; their figures are added."""
    table = make_table(plan)
    drawn = table.figures()
    yield from ("", f"#### {table.title}", "", table.about)
    for block in table.blocks:
        if any(cell.ours for cell in block.cells.values()):
            yield from ("", f"{block.title}:", "", *_lines(block))
    for name in drawn:
        file = f"{table.protocol}-{name}.png"
        figures[file] = partial(drawn.__getitem__, name)
        yield from ("", f"![{table.title}, {name}]({folder}/{file})")


def _by_cell(protocol: str, kept: Sequence[KeptRun]) -> Mapping[tuple[Setting, str], Sequence[Run]]:
    """The runs with the protocol's settings by setting and variant, one per seed; a patience is a variant too."""
    found: dict[tuple[Setting, str], dict[int, Run]] = {}
    for entry in kept:
        if not entry.faithful:
            continue
        own = recipe_for(entry.setting, entry.variant, protocol=protocol).method.restoration
        variants = [] if entry.differences else [entry.variant]
        if isinstance(own, Saturation):
            variants.append(f"{entry.variant}/patience={entry.differences.get(PATIENCE, own.patience)}")
        for variant in variants:
            found.setdefault((entry.setting, variant), {}).setdefault(entry.seed, entry.run)
    return {place: [by_seed[seed] for seed in sorted(by_seed)] for place, by_seed in found.items()}


def _lines(block: Block) -> list[str]:
    """A block as Markdown with its columns down and its rows across: our number, and the paper's in brackets."""
    rows = [
        [column, *(_text(block, block.cells.get((row, column), Cell())) for row in block.rows)]
        for column in block.columns
    ]
    return markdown_table([["", *block.rows], *rows], words=1)


def _text(block: Block, cell: Cell) -> str:
    theirs = f"({block.number(cell.paper.mean)})" if cell.paper else ""
    kind: Column = "best" if cell.best else "larger" if cell.larger else "ours"
    ours = block.text(cell, kind, compact=True) if cell.ours else ""
    return f"{ours.removesuffix(' merged')} {theirs}".strip()
