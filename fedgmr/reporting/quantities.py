"""Quantities as people read them, on a terminal or a page: seconds, bytes, shares, durations, aligned tables."""

from collections.abc import Sequence


def format_seconds(seconds: float) -> str:
    """Seconds as people write them: `0.5 s`, `42.5 s`, `1,240 s`."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def format_bytes(count: float) -> str:
    """Bytes in MB (10^6): `0.05 MB`, `12.3 MB`, `1,240 MB`."""
    megabytes = count / 1e6
    digits = 0 if megabytes >= 999.5 else 1 if megabytes >= 9.95 else 2
    return f"{megabytes:,.{digits}f} MB"


def format_percent(fraction: float) -> str:
    """A fraction as a percentage: `93.4 %`."""
    return f"{100 * fraction:.1f} %"


def format_clock(seconds: float) -> str:
    """Wall seconds to the second: `4:05`, `1:02:03`."""
    left = round(seconds)
    hours, minutes, rest = left // 3600, left // 60 % 60, left % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_duration(seconds: float) -> str:
    """Wall seconds, roughly: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def align_table(rows: Sequence[Sequence[str]], *, words: int) -> list[str]:
    """The lines of a table with a rule below its header; the first `words` columns are aligned left, numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        aligned = [f"{cell:{'<' if column < words else '>'}{widths[column]}}" for column, cell in enumerate(row)]
        lines.append("  ".join(aligned))
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def markdown_table(rows: Sequence[Sequence[str]], *, words: int) -> list[str]:
    """The lines of a Markdown table from its header and its rows; the first `words` columns are aligned left."""
    rule = [":--" if column < words else "--:" for column in range(len(rows[0]))]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in (rows[0], rule, *rows[1:])]
