"""The values of a table: our numbers beside the paper's.

A table has blocks (one per heterogeneity, for instance), a block has cells by row and column, and a cell has our number
and the paper's. Nothing here knows where numbers come from. Read next: `rendering.py`, which writes tables.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from fedgmr.reporting.chart import Chart

STAND_IN_MARK = "†"
LARGER = "larger of merged and padded on the test set"
Column = Literal["ours", "best", "larger", "paper", "difference"]


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

    ours: Measure | None = None  # of the merged model, where there are several
    best: Measure | None = None  # of the view that is best on validation samples
    best_view: str = ""  # its name
    larger: Measure | None = None  # of the larger of merged and padded model on the test set, for `difference` alone
    paper: Measure | None = None
    absent: str = "missing"  # written in place of our number where there is none
    stand_in: bool = False

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; where the views were tested, of the number that is made as the paper's is."""
        ours = self.larger or self.ours
        return None if ours is None or self.paper is None else ours.mean - self.paper.mean


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a table with its own rows and columns; a cell that is not there is empty."""

    title: str
    cells: Mapping[tuple[str, str], Cell]  # by (row, column), which stand in the order of the first cells
    row_name: str = "method"
    column_name: str = "setting"
    digits: int = 2
    relative: bool = False  # differences in percent of the paper's number, not in its unit
    uncoloured: tuple[str, ...] = ()  # rows of another unit, which have no colours on the page

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows."""
        return tuple(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(dict.fromkeys(column for _, column in self.cells))

    def filled(self) -> Iterator[tuple[str, str, Cell]]:
        """Yield (column, row, cell), column by column."""
        for column, row in product(self.columns, self.rows):
            if (row, column) in self.cells:
                yield column, row, self.cells[row, column]

    def number(self, value: float) -> str:
        """A number with the block's digits."""
        return f"{value:,.{self.digits}f}"

    def measure_text(self, measure: Measure) -> str:
        """A number as `81.20 ± 0.30`, with its deviation over seeds where there are several."""
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

    def text(self, cell: Cell, column: Column, *, compact: bool = False) -> str:
        """One of a cell's numbers; ours are marked where the data stands in for other data."""
        if column == "difference":
            return self.difference_text(cell)
        measure: Measure | None = getattr(cell, column)
        if measure is None:
            return cell.absent if column == "ours" else "-"
        text = self.compact_text(measure) if compact else self.measure_text(measure)
        mark = STAND_IN_MARK if cell.stand_in and column != "paper" else ""
        return text + mark + (f" {cell.best_view}" if column == "best" else "")

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
    """A table of the paper with our numbers beside it."""

    name: str
    title: str
    about: str  # the meaning of the numbers
    blocks: tuple[Block, ...]
    cautions: tuple[str, ...] = ()  # to be known before the numbers are believed
    notes: tuple[str, ...] = ()
    short: bool = False
    protocol: str = ""
    comparable: bool = True  # whether the runs have the paper's settings and length
    figures: Callable[[], Mapping[str, Chart]] = dict  # by file name; drawn when the table is written

    @property
    def heading(self) -> str:
        """The title with the protocol, marked where the runs are short."""
        marks = [f"protocol {self.protocol}"] if self.protocol else []
        marks += ["short runs"] if self.short else []
        return f"{self.title} ({', '.join(marks)})" if marks else self.title

    @property
    def columns(self) -> tuple[Column, ...]:
        """The numbers of a cell that the table shows: those of other models than the merged one where it has any."""
        cells = [cell for block in self.blocks for cell in block.cells.values()]
        views: tuple[Column, ...] = ("best", "larger")
        shown = [column for column in views if any(getattr(cell, column) is not None for cell in cells)]
        return ("ours", *shown, "paper", "difference")

    @property
    def headers(self) -> dict[Column, str]:
        """The names of these numbers."""
        ours = "ours, merged model" if "larger" in self.columns else "ours"
        names: dict[Column, str] = {
            "ours": f"{ours} (short)" if self.short else ours,
            "best": "best view by validation",
            "larger": LARGER,
            "paper": "paper",
            "difference": "difference" if self.comparable else "difference (not comparable)",
        }
        return {column: names[column] for column in self.columns}
