"""The page of a table: our numbers, the paper's and the difference as maps of coloured cells, in one HTML file.

Values are coloured within their column, ours and the paper's alike, because tasks differ. Differences are coloured on
one scale around zero, blue above the paper's number and orange below; colour-blind readers can tell them apart.
"""

import base64
from collections.abc import Mapping
from typing import Any

from fedgmr.paper.tables import Block, Cell, Column, Measure, Table
from fedgmr.reporting.markup import render

_LOW, _HIGH = (247, 251, 255), (66, 146, 198)
_BELOW, _MIDDLE, _ABOVE = (230, 126, 34), (248, 248, 248), (33, 113, 181)
_FULL_SCALE = 10.0  # points or percent at which a difference has its full colour
_NOT_COMPARABLE = "These runs do not have the paper's length or settings: differences are not comparable."


def table_page(table: Table, images: Mapping[str, bytes]) -> str:
    """The text of the page with the table's figures, which are given as PNG images."""
    blocks = [
        {
            "title": block.title,
            "maps": [{"name": name, **_map(block, number)} for number, name in table.headers.items()],
        }
        for block in table.blocks
    ]
    return render(
        "paper",
        "table.html",
        table=table,
        cautions=[*([] if table.comparable else [_NOT_COMPARABLE]), *table.cautions],
        blocks=blocks,
        images=[base64.b64encode(image).decode() for image in images.values()],
        caption="Growth of accuracy by density, by stage of training.",
    )


def _map(block: Block, kind: Column) -> dict[str, Any]:
    """The header, and by row the colour and the text of every cell."""
    scales = {column: _scale(block, column) for column in block.columns}
    rows = []
    for row in block.rows:
        cells = []
        for column in block.columns:
            cell = block.cells.get((row, column), Cell(absent=""))
            plain = kind != "difference" and row in block.uncoloured
            colour = None if plain else _colour(block, kind, cell, scales[column])
            cells.append((colour, block.text(cell, kind, compact=True)))
        rows.append((row, cells))
    return {"header": ["", *block.columns], "rows": rows}


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
