"""The table of a live display: the columns that fit into a terminal, a bar that takes what is left.

Every text is cut to its column, so that no line of the table wraps. Read next: `display.py`, which shows it.
"""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size

from fedgmr.reporting.rows import METRIC, RunRow

_WORDS = ("run", "bar", "directory")  # columns that are aligned left
_DROPPED_FIRST = ("directory", "tick", "density", "down", "up", "bar")  # a narrow terminal loses these, in this order
_GAP = "  "
_BAR_WIDTHS = 8, 40


def table_lines(rows: Mapping[RunRow, dict[str, str]], width: int) -> list[str]:
    """The header and a line for every row, from its texts by column; before its first tick words are its bar."""
    names = dict.fromkeys(METRIC if row.reading.accuracy else row.reading.name for row in rows)
    title = next(iter(names)) if len(names) == 1 else "metric"
    widths = _widths(list(rows.values()), width, title)
    bar = widths.get("bar", 0)
    header = dict(zip(widths, widths, strict=True)) | {"bar": "", METRIC: title}
    bars = [texts["bar"] or ("━" * int(row.share * bar)).ljust(bar, "─") for row, texts in rows.items()]
    cells = [header, *(texts | {"bar": drawn} for texts, drawn in zip(rows.values(), bars, strict=True))]
    return [_GAP.join(_fitted(column, texts[column], wide) for column, wide in widths.items()) for texts in cells]


def _widths(cells: Sequence[Mapping[str, str]], width: int, metric: str) -> dict[str, int]:
    """The columns that fit into a terminal and their widths; the bar takes what is left, the name gives what lacks."""
    shown = [column for column in cells[0] if column == "bar" or any(texts[column] for texts in cells)]
    widths = {column: max(map(cell_len, [column, *(texts[column] for texts in cells)])) for column in shown}
    if METRIC in widths:
        widths[METRIC] = max(cell_len(text) for text in (metric, *(texts[METRIC] for texts in cells)))
    widths["bar"] = _BAR_WIDTHS[0]
    for column in _DROPPED_FIRST:
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) > width:
            widths.pop(column, None)
    spare = width - sum(widths.values()) - len(_GAP) * (len(widths) - 1)
    if "bar" in widths and spare > 0:
        widths["bar"] = min(_BAR_WIDTHS[1], widths["bar"] + spare)
    elif spare < 0:
        widths["run"] = max(1, widths["run"] + spare)
    return widths


def _fitted(column: str, text: str, width: int) -> str:
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width) if column in _WORDS else text.rjust(width)
