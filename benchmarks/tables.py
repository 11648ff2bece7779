"""Results as a Markdown table on the terminal and as CSV in a file."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, object]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as an aligned Markdown table, with numbers on the right."""
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    right = [all(isinstance(row[name], int | float) or _is_number(str(row[name])) for row in rows) for name in names]

    def line(texts: Sequence[str]) -> str:
        padded = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = "|".join(f"{'-' * (w + 1)}:" if r else "-" * (w + 2) for w, r in zip(widths, right, strict=True))
    return "\n".join([line(names), f"|{rule}|", *map(line, cells[1:])])


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("%", "").strip("+- ").isdigit()
