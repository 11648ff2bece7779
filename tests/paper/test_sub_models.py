"""The sub-models of a setting's runs, in the document of results."""

import json
from pathlib import Path

import pytest

from fedgmr.paper.results import results_document

from .conftest import write_run

NAME = "fair-femnist-high-noniid-levels.png"


def write_levels(directory: Path, levels: dict[str, float], **about: object) -> None:
    """A run whose padded model is at 60 %, and whose sub-models are tested at every tenth evaluation."""
    write_run(directory, [0.5] * 101, padded=[0.6] * 101, **about)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for line in lines[::10]:
        line["views"] |= {f"level {name}": {"accuracy": value, "loss": 1.0} for name, value in levels.items()}
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((directory / "summary.json").read_text())
    summary["views"] |= {f"level {name}": {} for name in levels}
    (directory / "summary.json").write_text(json.dumps(summary))


def test_each_level_has_a_number_and_a_point(tmp_path: Path) -> None:
    write_levels(tmp_path / "a", {"0.05": 0.30, "0.5": 0.70})
    write_levels(tmp_path / "b", {"0.05": 0.40, "0.5": 0.70}, seed=1)
    write_levels(tmp_path / "c", {"0.05": 0.45, "0.2": 0.55}, variant="fjord")
    write_run(tmp_path / "d", [0.9] * 101, variant="fedavg")
    document = results_document(tmp_path, "pictures")
    table = document.text.split("The sub-model of each density alone")[1]
    assert "| method | 0.05 | 0.2 | 0.5 | 1 | padded |" in table
    assert "| FedGMR | 35.00 ± 7.07 |  | **70.00 ± 0.00** | 50.00 ± 0.00 | 60.00 ± 0.00 |" in table
    assert "| FjORD | 45.00 ± 0.00 | 55.00 ± 0.00 |  | 50.00 ± 0.00 | **60.00 ± 0.00** |" in table
    assert "| FedAvg |" not in table.split("The paper's other tables")[0].split("![")[0], "it has no sub-models"
    assert f"](pictures/{NAME})" in document.text

    axes = document.figures[NAME]().axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    points = {tuple((float(x), round(float(y), 9)) for x, y in zip(*line.get_data(), strict=True)) for line in lines}
    assert {((0.05, 35.0), (0.5, 70.0), (1.0, 50.0)), ((0.05, 45.0), (0.2, 55.0), (1.0, 50.0))} <= points
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "0.5", "0.2", "0.05"]


def test_what_not_all_seeds_have_tested_is_left_out(tmp_path: Path) -> None:
    write_levels(tmp_path / "a", {"0.05": 0.30, "0.5": 0.70})
    write_levels(tmp_path / "b", {"0.05": 0.40}, seed=1)
    table = results_document(tmp_path).text.split("The sub-model of each density alone")[1]
    assert "| method | 0.05 | 1 | padded |" in table


@pytest.mark.parametrize("short", [False, True])
def test_without_levels_there_is_nothing(tmp_path: Path, short: bool) -> None:
    if short:
        write_levels(tmp_path / "a", {"0.5": 0.7}, short=True)
    else:
        write_run(tmp_path / "a", [0.5] * 101, padded=[0.6] * 101)
    document = results_document(tmp_path)
    assert "The sub-model of each density alone" not in document.text
    assert NAME not in document.figures
