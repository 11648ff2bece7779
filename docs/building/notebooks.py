"""Notebooks without a notebook's machinery: cells in order, in one namespace, and what they print, show and draw.

The notebooks are kept without outputs. Their code is plain Python, so neither a kernel nor its packages are needed: a
test performs them, and the site shows what came out when it was built. Read next: `figures/style.py`.
"""

import ast
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from figures.style import inline


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell that was performed: its kind ("code" or "markdown"), its text, and what it left."""

    kind: str
    text: str
    printed: str = ""
    drawn: tuple[Figure, ...] = ()


def perform(path: Path) -> list[Cell]:
    """Perform a notebook in a folder of its own; an exception ends it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    mpl.use("Agg")
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        return [_performed(text, names) if kind == "code" else Cell(kind=kind, text=text) for kind, text in cells]


def as_markdown(path: Path) -> str:
    """A notebook as a document: text, code, and what the code left."""
    parts = []
    for cell in perform(path):
        parts.append(cell.text if cell.kind == "markdown" else f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed.rstrip()}\n```")
        parts += [raw_html(_picture(figure), "output") for figure in cell.drawn]
    return "\n\n".join([*parts, ""])


def raw_html(html: str, kind: str) -> str:
    """A piece of HTML for a Markdown page, in a box of this kind."""
    return f'```{{raw}} html\n<div class="{kind}">\n{html}\n</div>\n```'


def _performed(text: str, names: dict[str, Any]) -> Cell:
    """Run a cell; the value of a last expression is shown, and a figure drawn."""
    body = ast.parse(text).body
    last = ast.Expression(body[-1].value) if body and isinstance(body[-1], ast.Expr) else None
    body = body[:-1] if last else body
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        value = None if last is None else eval(compile(last, "<cell>", "eval"), names)
        if value is not None and not isinstance(value, Figure):
            print(repr(value))
    return Cell(kind="code", text=text, printed=printed.getvalue(), drawn=(value,) if isinstance(value, Figure) else ())


def _picture(figure: Figure) -> str:
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "cell"}):
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return inline(file.getvalue(), "A figure that the code above has drawn.")


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
