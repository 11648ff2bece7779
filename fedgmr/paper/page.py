"""The page of a table: our numbers, the paper's and the difference as maps of coloured cells, in one HTML file.

Values are coloured within their column, ours and the paper's alike, because tasks differ. Differences are coloured on
one scale around zero, blue above the paper's number and orange below; colour-blind readers can tell them apart.
"""

from collections.abc import Mapping
from html import escape

from fedgmr.paper.tables import Block, Cell, Column, Measure, Table
from fedgmr.reporting.html_page import Page

_LOW, _HIGH = (247, 251, 255), (66, 146, 198)
_BELOW, _MIDDLE, _ABOVE = (230, 126, 34), (248, 248, 248), (33, 113, 181)
_FULL_SCALE = 10.0  # points or percent at which a difference has its full colour
_STYLE = """<style>.heat td { border: 1px solid var(--paper); color: #111; text-align: center; }
.heat td.none { color: inherit; }</style>"""


def table_page(table: Table, images: Mapping[str, bytes]) -> Page:
    """The page with the table's figures, which are given as PNG images."""
    page = Page(table.heading, table.about)
    page.add(_STYLE)
    if not table.comparable:
        page.notices(["These runs do not have the paper's length or settings: differences are not comparable."])
    page.notices(table.cautions)
    for block in table.blocks:
        if block.title:
            page.heading(block.title)
        for number, name in table.headers.items():
            page.heading(name, level=3)
            page.add(_map(block, number))
    if images:
        page.heading("Figures")
    for image in images.values():
        page.figure(image, "Growth of accuracy by density, by stage of training.")
    if table.notes:
        page.heading("Notes")
        items = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
        page.add(f'<ul class="soft">{items}</ul>')
    return page


def _map(block: Block, kind: Column) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", *block.columns))
    scales = {column: _scale(block, column) for column in block.columns}
    lines = []
    for row in block.rows:
        cells = []
        for column in block.columns:
            cell = block.cells.get((row, column), Cell(absent=""))
            plain = kind != "difference" and row in block.uncoloured
            colour = None if plain else _colour(block, kind, cell, scales[column])
            look = 'class="none"' if colour is None else f'style="background:{colour}"'
            cells.append(f"<td {look}>{escape(block.text(cell, kind, compact=True))}</td>")
        lines.append(f'<tr><th scope="row">{escape(row)}</th>{"".join(cells)}</tr>\n')
    table = f'<table class="heat"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _scale(block: Block, column: str) -> tuple[float, float]:
    """The least and the largest number of a column, ours and the paper's together: equal numbers look equal."""
    cells = [cell for name, row, cell in block.filled() if name == column and row not in block.uncoloured]
    measures = [measure for cell in cells for measure in (cell.ours, cell.best, cell.larger, cell.paper)]
    numbers = [measure.mean for measure in measures if measure is not None]
    return (min(numbers), max(numbers)) if numbers else (0.0, 0.0)


def _colour(block: Block, kind: Column, cell: Cell, scale: tuple[float, float]) -> str | None:
    if kind == "difference":
        number = block.shown_difference(cell)
        if number is None:
            return None
        return _mix(_MIDDLE, _ABOVE if number > 0 else _BELOW, min(1.0, abs(number) / _FULL_SCALE) * 0.8)
    measure: Measure | None = getattr(cell, kind)
    if measure is None:
        return None
    low, high = scale
    return _mix(_LOW, _HIGH, (measure.mean - low) / (high - low) if high > low else 0.5)


def _mix(first: tuple[int, int, int], second: tuple[int, int, int], share: float) -> str:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return f"rgb({red},{green},{blue})"
