"""The tables behind the first one in the document of results: numbers in their cells, the paper's alone elsewhere."""

from pathlib import Path

from fedgmr.paper.growth import DENSITIES
from fedgmr.paper.planning import Request, plan_table
from fedgmr.paper.results import results_document

from .conftest import write_run

_PATIENT = ["method.restoration.patience=10"]


def other_tables(directory: Path) -> str:
    return results_document(directory).text.partition("### The paper's other tables")[2].partition("\n## ")[0]


def test_a_run_is_in_every_table_it_belongs_to(tmp_path: Path) -> None:
    for seed, level in enumerate((0.80, 0.82)):
        write_run(tmp_path / f"a{seed}", [level] * 101, seed=seed)
    write_run(tmp_path / "b", [0.7] * 101, padded=[0.75] * 101, variant="fedgmr_without_buffer", stand_in="EMNIST")
    write_run(tmp_path / "c", [0.9] * 101, variant="fedgmr/ga", overrides=["training.steps=9"])
    text = other_tables(tmp_path)
    ours = "81.00 ± 1.41 (81.86)"  # over two seeds, and the first patience of the protocol
    assert f"| FEMNIST non-IID | {ours} | (78.80) | (79.91) | 75.00 ± 0.00† padded (82.08) | (82.08) |" in text
    assert f"| FEMNIST non-IID | {ours} | (80.95) | (79.79) |" in text, "GA was run with other settings"
    assert "| FEMNIST non-IID | 81.00 ± 1.41 (81.71) | (80.07) |" in text, "in the table of fixed times"
    assert "plugged" not in text, "nobody has run any of that table"
    assert "CIFAR-10" not in text


def test_a_patience_has_its_column_and_the_range_needs_all(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.80] * 101)
    write_run(tmp_path / "b", [0.84] * 101, overrides=_PATIENT)
    row = "| FEMNIST non-IID | (79.69) |  | 80.00 ± 0.00 | 84.00 ± 0.00 |  | (79.63) | (81.86) | (2.17) |"
    assert row in other_tables(tmp_path)
    assert "84.00 ± 0.00 (8" not in other_tables(tmp_path), "the other tables have one patience, the recipe's"
    write_run(tmp_path / "c", [0.79] * 101, overrides=["method.restoration.patience=3"])
    write_run(tmp_path / "d", [0.78] * 101, overrides=["method.restoration.patience=20"])
    write_run(tmp_path / "e", [0.70] * 101, variant="fedgmr_without_restoration")
    assert "| 78.00 (79.63) | 84.00 (81.86) | 14.00 (2.17) |" in other_tables(tmp_path)


def test_short_runs_are_in_no_table(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.8] * 11, short=True)
    assert not other_tables(tmp_path)


def test_the_growth_by_density_comes_with_its_figure(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.8] * 101)
    assert "Growth" not in other_tables(tmp_path)
    plan = plan_table(Request(name="density-growth", task="femnist"), tmp_path)
    assert len(plan.runs) == len(DENSITIES)
    for number, run in enumerate(plan.runs):
        write_run(run.directory, [0.01 * step * (number + 1) / 20 for step in range(101)], recipe=run.recipe)
    document = results_document(tmp_path, "pictures")
    # Straight lines of 500 merges, up to 5 points with the first density and to 50 with the last.
    late = next(line for line in document.text.splitlines() if line.startswith("| late, 50% to 100% of the merges |"))
    assert late.split(" | ")[1:] == [f"{density:.3f}" for density in range(1, 10)] + ["10.000 |"]
    assert "](pictures/fair-growth-femnist.png)" in document.text
    assert document.figures["fair-growth-femnist.png"]().axes.lines
    assert "## Other runs" not in document.text, "they are in a table"
