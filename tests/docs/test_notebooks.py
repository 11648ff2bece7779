"""The notebooks run from top to bottom, are kept without outputs, and show what their text says."""

import ast
import json
from pathlib import Path

import pytest

from building.notebooks import Cell, as_markdown, perform
from building.tree import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_kept(path: Path) -> None:
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert (notebook["nbformat"], len(cells) > 3) == (4, True)
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []


def test_first_steps() -> None:
    made, rows, densities, accuracy, costs, left = _code("first-steps")
    assert made.printed.startswith("Result(FedGMR on mnist5k: finished")
    first, *_, last = [ast.literal_eval(line.partition("densities ")[2]) for line in rows.printed.splitlines()]
    assert sum(last) > sum(first), "clients move up"
    assert len(densities.drawn) == len(accuracy.drawn) == 1
    assert "the server's uplink" in costs.printed
    assert left.printed.endswith("True\n")


def test_own_model_and_data() -> None:
    waves, task, levels, result, rows, views = _code("own-model-and-data")
    assert len(waves.drawn) == 1
    assert task.printed == "Task('waves', 3,000 training and 1,000 test samples)\n"
    assert "6,947" in levels.printed
    assert "finished" in result.printed
    assert rows.printed.splitlines()[-1].endswith("[1.0, 1.0, 1.0]"), "everybody gets the whole model"
    merged, small = [float(line.split()[-1]) for line in views.printed.splitlines()]
    assert merged > 0.9 > small


def test_comparing_methods() -> None:
    _, runs, table, curves, needed = _code("comparing-methods")
    assert "FedGMR on corners" in runs.printed
    names = [line[:20].strip() for line in table.printed.splitlines()[1:]]
    assert names == ["FedGMR", "without restoration", "FedAsync", "FedAvg"]
    assert len(curves.drawn) == 1
    assert needed.printed.count("MiB") >= 1


def test_notebook_becomes_a_page_with_what_it_left(tmp_path: Path) -> None:
    sources = [
        ("markdown", "# A page"),
        ("code", "from matplotlib.figure import Figure\nprint(6 * 7)"),
        ("code", "Figure()"),
        ("code", "'last'"),
    ]
    cells = [{"cell_type": kind, "source": text.splitlines(keepends=True)} for kind, text in sources]
    (tmp_path / "page.ipynb").write_text(json.dumps({"cells": cells}))
    text = as_markdown(tmp_path / "page.ipynb")
    assert text.startswith(
        "# A page\n\n```python\nfrom matplotlib.figure import Figure\nprint(6 * 7)\n```\n\n```text\n42\n```"
    )
    assert '<div class="output">\n<svg ' in text
    assert text.endswith("```python\n'last'\n```\n\n```text\n'last'\n```\n\n")


def _code(name: str) -> list[Cell]:
    return [cell for cell in perform(ROOT / "examples" / "notebooks" / f"{name}.ipynb") if cell.kind == "code"]
