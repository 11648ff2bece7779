"""Tables as files: text for a terminal, Markdown, CSV, LaTeX and, by `page.py`, a page."""

import contextlib
import csv
import io
from pathlib import Path

from fedgmr.files import write_atomic
from fedgmr.paper.page import table_page
from fedgmr.paper.tables import Block, Cell, Column, Measure, Table
from fedgmr.reporting.quantities import align_table, markdown_table

_IN_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "±": r"$\pm$"}
)


def write_table(table: Table, directory: Path) -> Path:
    """Write `table.csv`, `table.md`, `table.tex`, `table.html` and the table's figures; returns the page."""
    directory.mkdir(parents=True, exist_ok=True)
    images: dict[str, bytes] = {}
    with contextlib.suppress(ModuleNotFoundError):  # without matplotlib the table has no figures
        images = {name: chart.save(directory, name) for name, chart in table.figures().items()}
    for kind, text in {"csv": _csv(table), "md": _markdown(table), "tex": _latex(table)}.items():
        write_atomic(directory / f"table.{kind}", text)
    page = directory / "table.html"
    write_atomic(page, table_page(table, images))
    return page


def table_text(table: Table) -> str:
    """The table for a terminal."""
    lines = [table.heading, table.about]
    for block in table.blocks:
        rows = _flat(table, block)
        lines += ["", *([block.title] if block.title else []), *align_table(rows, words=2)]
    return "\n".join([*lines, "", *(f"note: {note}" for note in (*table.cautions, *table.notes))]).rstrip()


def _markdown(table: Table) -> str:
    lines = [f"# {table.heading}", "", table.about]
    for block in table.blocks:
        if block.title:
            lines += ["", f"## {block.title}"]
        lines += ["", *markdown_table(_flat(table, block), words=2)]
    if notes := (*table.cautions, *table.notes):
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _csv(table: Table) -> str:
    """The numbers unrounded, one line per cell; an empty field where there is none."""
    names = ["table", "block", "column", "row", "ours", "ours_std", "seeds", "seeds_std", "paper", "paper_std"]
    names += ["best", "best_seeds_std", "best_view", "larger", "larger_std", "larger_seeds_std"]
    names += ["difference", "difference_percent", "status", "short", "stand_in", "comparable", "protocol"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for block in table.blocks:
        for column, row, cell in block.filled():
            ours, paper, difference = cell.ours, cell.paper, cell.difference
            percent = 100 * difference / paper.mean if difference is not None and paper and paper.mean else None
            values = [
                *(table.name, block.title, column, row),
                *((ours.mean, ours.std, ours.seeds, ours.seeds_std) if ours else (None,) * 4),
                *((paper.mean, paper.std) if paper else (None, None)),
                *((cell.best.mean, cell.best.seeds_std, cell.best_view) if cell.best else (None,) * 3),
                *((cell.larger.mean, cell.larger.std, cell.larger.seeds_std) if cell.larger else (None,) * 3),
                *(difference, percent, "" if ours else cell.absent),
                *(int(table.short), int(cell.stand_in), int(table.comparable), table.protocol),
            ]
            writer.writerow(["" if value is None else value for value in values])
    return buffer.getvalue()


def _latex(table: Table) -> str:
    """The table for a document that uses the package booktabs: a line per number of a row."""
    parts = [f"% {table.heading}. {table.about}", *(f"% {note}" for note in (*table.cautions, *table.notes))]
    for block in table.blocks:
        columns = "l" * 2 + "r" * len(block.columns)
        head = " & ".join(["", "", *(column.translate(_IN_LATEX) for column in block.columns)])
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rf"{head} \\", r"\midrule"]
        for row in block.rows:
            cells = [block.cells.get((row, column), Cell(absent="")) for column in block.columns]
            for column, name in table.headers.items():
                first = row.translate(_IN_LATEX) if column == "ours" else ""
                texts = [_latex_number(block, cell, column) for cell in cells]
                lines.append(" & ".join([first, name.translate(_IN_LATEX), *texts]) + r" \\")
            lines.append(r"\addlinespace")
        lines[-1] = r"\bottomrule"
        caption = (f"{table.heading}. {block.title}".rstrip(". ") + ".").translate(_IN_LATEX)
        parts += [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", *lines, r"\end{tabular}", r"\end{table}"]
    return "\n".join(parts) + "\n"


def _latex_number(block: Block, cell: Cell, column: Column) -> str:
    if column == "difference":
        return block.difference_text(cell).translate(_IN_LATEX)
    measure: Measure | None = getattr(cell, column)
    if measure is None:
        return cell.absent.translate(_IN_LATEX) if column == "ours" else "--"
    body = block.compact_text(measure).replace(",", "{,}").replace("±", r"\pm")
    mark = r"$^\dagger$" if cell.stand_in and column != "paper" else ""
    return f"${body}${mark}" + (f" {cell.best_view}".translate(_IN_LATEX) if column == "best" else "")


def _flat(table: Table, block: Block) -> list[list[str]]:
    """A heading and the filled cells as rows of text; a column is named in its first row."""
    rows, last = [[block.column_name, block.row_name, *table.headers.values()]], None
    for column, row, cell in block.filled():
        shown = "" if column == last else column
        rows.append([shown, row, *(block.text(cell, number) for number in table.columns)])
        last = column
    return rows
