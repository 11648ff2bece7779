"""Tables of ours beside the paper's: values, and how they are written for a terminal, Markdown, CSV and LaTeX.

A table has blocks (one per heterogeneity, say), a block has cells by row and column, a cell has our number, the
paper's and so a difference. Nothing here knows where numbers come from: `fedgmr/experiments/tables` does. Read next:
`heatmap.py`, the page.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

STAND_IN_MARK = "†"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number; a deviation is None where there is nothing to compute it from."""

    mean: float
    std: float | None = None  # over the evaluations around t*, the paper's kind
    seeds: int = 1
    seeds_std: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Our number and the paper's."""

    ours: Measure | None = None
    paper: Measure | None = None
    absent: str = "missing"  # what is written where ours should be
    stand_in: bool = False

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper.mean


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a table with its own rows and columns."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]  # by (row, column); an absent one is empty
    row_name: str = "method"
    column_name: str = "setting"
    digits: int = 2
    relative: bool = False  # differences in percent of the paper's number, not in its unit
    uncoloured: tuple[str, ...] = ()  # rows of another unit, which a map of colours leaves plain

    def filled(self) -> Iterator[tuple[str, str, Cell]]:
        """(column, row, cell), column by column."""
        for column in self.columns:
            for row in self.rows:
                if (row, column) in self.cells:
                    yield column, row, self.cells[row, column]

    def number(self, value: float) -> str:
        """A number with the block's digits."""
        return f"{value:,.{self.digits}f}"

    def measure_text(self, measure: Measure | None, absent: str = "-") -> str:
        """`81.20 ± 0.30`, and over seeds where there are several."""
        if measure is None:
            return absent
        text = self.number(measure.mean)
        if measure.std is not None:
            text += f" ± {self.number(measure.std)}"
        if measure.seeds > 1:
            over = "" if measure.seeds_std is None else f": ± {self.number(measure.seeds_std)}"
            text += f" ({measure.seeds} seeds{over})"
        return text

    def compact_text(self, measure: Measure) -> str:
        """The mean and one deviation: over seeds where there are several, else over evaluations."""
        std = measure.seeds_std if measure.seeds_std is not None else measure.std
        return self.number(measure.mean) + ("" if std is None else f" ± {self.number(std)}")

    def ours_text(self, cell: Cell) -> str:
        """Our number, marked where the data stands in for other data."""
        return self.measure_text(cell.ours, cell.absent) + (STAND_IN_MARK if cell.stand_in and cell.ours else "")

    def shown_difference(self, cell: Cell) -> float | None:
        """The difference as the block shows it: in its unit, or in percent of the paper's number."""
        if cell.difference is None or cell.paper is None or not self.relative:
            return cell.difference
        return 100 * cell.difference / cell.paper.mean if cell.paper.mean else None

    def difference_text(self, cell: Cell) -> str:
        """The difference with its sign."""
        shown = self.shown_difference(cell)
        if shown is None:
            return "-"
        return f"{shown:+.2f} %" if self.relative else f"{shown:+.{self.digits}f}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper, ours beside it."""

    name: str
    title: str
    about: str  # what the numbers are
    blocks: tuple[Block, ...]
    cautions: tuple[str, ...] = ()  # what a reader must know before believing the numbers
    notes: tuple[str, ...] = ()
    short: bool = False
    comparable: bool = True  # whether the runs have the paper's settings and length
    extra: Mapping[str, str] = field(default_factory=dict)  # further sections of the page, HTML by heading

    @property
    def heading(self) -> str:
        """The title, marked where the runs are short."""
        return f"{self.title} (short runs)" if self.short else self.title

    @property
    def headers(self) -> tuple[str, str, str]:
        """The names of the three kinds of numbers."""
        return (
            "ours (short)" if self.short else "ours",
            "paper",
            "difference" if self.comparable else "difference (not comparable)",
        )


def table_text(table: Table) -> str:
    """The table for a terminal."""
    lines = [table.heading, table.about]
    for block in table.blocks:
        header = [block.column_name, block.row_name, *table.headers]
        rows = [header, *_flat(block)]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        aligned = [_aligned(row, widths) for row in rows]
        aligned.insert(1, "-" * len(aligned[0]))
        lines += ["", *([block.title] if block.title else []), *aligned]
    return "\n".join([*lines, "", *(f"note: {note}" for note in (*table.cautions, *table.notes))]).rstrip()


def table_markdown(table: Table, *, level: int = 1) -> str:
    """The table in Markdown under headings that begin at `level`."""
    lines = [f"{'#' * level} {table.heading}", "", table.about]
    for block in table.blocks:
        if block.title:
            lines += ["", f"{'#' * (level + 1)} {block.title}"]
        lines += ["", *markdown_rows([block.column_name, block.row_name, *table.headers], _flat(block), left=2)]
    if notes := (*table.cautions, *table.notes):
        lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """The lines of a Markdown table whose first `left` columns are text and the others numbers."""
    align = [":--" if i < left else "--:" for i in range(len(header))]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in (header, align, *rows)]


def table_csv(table: Table) -> str:
    """The numbers unrounded, one line per cell; an empty field where there is none."""
    names = ["table", "block", "column", "row", "ours", "ours_std", "seeds", "seeds_std", "paper", "paper_std"]
    names += ["difference", "difference_percent", "status", "short", "stand_in", "comparable"]
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
                *(difference, percent, "" if ours else cell.absent),
                *(int(table.short), int(cell.stand_in), int(table.comparable)),
            ]
            writer.writerow(["" if value is None else value for value in values])
    return buffer.getvalue()


def table_latex(table: Table) -> str:
    """The table for a document that uses the package booktabs: three lines per row, ours, the paper's, difference."""
    parts = [f"% {table.heading}. {table.about}", *(f"% {note}" for note in (*table.cautions, *table.notes))]
    for block in table.blocks:
        columns = "l" * 2 + "r" * len(block.columns)
        head = " & ".join(["", "", *map(latex_escape, block.columns)])
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rf"{head} \\", r"\midrule"]
        for row in block.rows:
            cells = [block.cells.get((row, column), Cell(absent="")) for column in block.columns]
            kinds = (
                [_latex_ours(block, cell) for cell in cells],
                [_latex_measure(block, cell.paper, "--") for cell in cells],
                [latex_escape(block.difference_text(cell)) for cell in cells],
            )
            for number, (name, texts) in enumerate(zip(table.headers, kinds, strict=True)):
                first = latex_escape(row) if number == 0 else ""
                lines.append(" & ".join([first, latex_escape(name), *texts]) + r" \\")
            lines.append(r"\addlinespace")
        lines[-1] = r"\bottomrule"
        caption = latex_escape(f"{table.heading}. {block.title}".rstrip(". ") + ".")
        parts += [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", *lines, r"\end{tabular}", r"\end{table}"]
    return "\n".join(parts) + "\n"


def latex_escape(text: str) -> str:
    """Text with LaTeX's special characters written out."""
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "±": r"$\pm$"}
    return "".join(special.get(c, c) for c in text)


def _latex_ours(block: Block, cell: Cell) -> str:
    mark = r"$^\dagger$" if cell.stand_in and cell.ours else ""
    return _latex_measure(block, cell.ours, cell.absent) + mark


def _latex_measure(block: Block, measure: Measure | None, absent: str) -> str:
    if measure is None:
        return latex_escape(absent)
    body = block.compact_text(measure).replace(",", "{,}").replace("±", r"\pm")
    return f"${body}$"


def _flat(block: Block) -> list[list[str]]:
    rows, last = [], None
    for column, row, cell in block.filled():
        paper = block.measure_text(cell.paper)
        shown = "" if column == last else column
        rows.append([shown, row, block.ours_text(cell), paper, block.difference_text(cell)])
        last = column
    return rows


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    texts = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
    return "  ".join([*texts, *numbers]).rstrip()
