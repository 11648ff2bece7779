import csv
import io
from pathlib import Path

import pytest

from fedgmr.reporting import compare_runs

from .conftest import evaluation, write_curve, write_run


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    """Two methods, three seeds: A ends at .80 .82 .84, B at .70 .72 .71."""
    made = []
    curves = {"B": [(0.40, 0.70), (0.41, 0.72), (0.42, 0.71)], "A": [(0.5, 0.80), (0.6, 0.82), (0.7, 0.84)]}
    for method, seeds in curves.items():
        for seed, (half, final) in enumerate(seeds):
            points = {0.0: 0.1, 100.0: half, 200.0: final}
            made.append(write_curve(tmp_path / f"{method}{seed}", points, method_title=method, seed=seed))
    return made


def test_table_by_hand(dirs: list[Path]) -> None:
    comparison = compare_runs(dirs)
    assert comparison.budget == 200.0
    assert comparison.target == 0.779  # 95 % of 82 %
    assert comparison.table()[0] == [
        "method",
        "runs",
        "acc. (%) at 200 s",
        "acc. (%) at 100 s",
        "time to 77.9 %",
        "data to 77.9 %",
    ]
    assert comparison.table()[1:] == [
        ["A", "3", "82.00 ± 2.00", "60.00 ± 10.00", "200 s", "360.0 MB"],
        ["B", "3", "71.00 ± 1.00", "41.00 ± 1.00", "- (0 of 3)", "- (0 of 3)"],
    ]
    assert "Target 77.9 %, 95 % of the best method's accuracy" in comparison.heading()
    assert comparison.notes == ()


def test_way_to_a_target_is_the_mean_over_the_runs_that_reach_it(dirs: list[Path]) -> None:
    comparison = compare_runs(dirs, target=0.7)
    # A reaches 70 % at 200, 200 and 100 s; 1.8 MB pass per second
    assert comparison.table()[1][4:] == ["167 s", "300.0 MB"]
    comparison = compare_runs(dirs, target=0.71)
    assert comparison.table()[2][4:] == ["200 s (2 of 3)", "360.0 MB (2 of 3)"]
    assert "Target 71.0 %, as asked" in comparison.heading()


def test_one_seed_has_no_std(dirs: list[Path]) -> None:
    comparison = compare_runs([dirs[0], dirs[3]])
    assert [row[2] for row in comparison.table()[1:]] == ["80.00 ± -", "70.00 ± -"]
    assert comparison.rows[0].accuracy_std is None
    assert ",," in comparison.csv()


def test_text_is_aligned_and_best_first(dirs: list[Path]) -> None:
    lines = compare_runs(dirs).text().splitlines()
    head, rule, *rows = lines[lines.index("") + 1 :]
    assert [row.split()[0] for row in rows] == ["A", "B"]
    assert {len(line) for line in (head, rule, *rows)} == {len(rule)}
    assert set(rule) == {"-"}
    assert lines[0] == "FEMNIST, non-IID, fleet high"


def test_csv_has_the_numbers_unrounded(dirs: list[Path]) -> None:
    rows = list(csv.DictReader(io.StringIO(compare_runs(dirs, target=0.7).csv())))
    assert [row["method"] for row in rows] == ["A", "B"]
    assert float(rows[0]["accuracy"]) == pytest.approx(0.82)
    assert float(rows[0]["accuracy_std"]) == pytest.approx(0.02)
    assert float(rows[0]["seconds_to_target"]) == pytest.approx(500 / 3)
    assert float(rows[0]["bytes_to_target"]) == pytest.approx(300e6)
    assert (rows[0]["reached"], rows[0]["target_accuracy"], rows[0]["budget_seconds"]) == (
        "3",
        "0.7",
        "200.0",
    )


def test_markdown_escapes_bars_in_names(tmp_path: Path) -> None:
    markdown = compare_runs([write_curve(tmp_path / "a", {0.0: 0.1, 200.0: 0.8}, method_title="A|B")]).markdown()
    assert r"| A\|B | 1 | 80.00 ± - |" in markdown
    assert "| :-- | --: |" in markdown


def test_budget_is_the_time_all_runs_cover(tmp_path: Path) -> None:
    exact = write_curve(tmp_path / "a", {0.0: 0.1, 200.0: 0.8}, method_title="A")
    late = write_curve(tmp_path / "b", {0.0: 0.1, 201.0: 0.7}, method_title="B")
    long = write_curve(tmp_path / "c", {0.0: 0.1, 190.0: 0.5, 400.0: 0.9}, method_title="C")
    # One percent is the overshoot of a last tick, twice the length is another budget.
    comparison = compare_runs([exact, late, long])
    assert comparison.budget == 201.0
    assert [(row.method, row.accuracy) for row in comparison.rows] == [("A", 0.8), ("B", 0.7), ("C", 0.5)]


def test_unfinished_runs_are_left_out_with_a_note(dirs: list[Path], tmp_path: Path) -> None:
    half = write_run(tmp_path / "half", [evaluation(0.0, 0.1), evaluation(50.0, 0.3)], None)
    comparison = compare_runs([*dirs, half])
    assert comparison.table() == compare_runs(dirs).table()
    assert comparison.notes == (f"left out, not finished: {half}",)
    assert comparison.text().split()[-6:] == f"note: left out, not finished: {half}".split()
    alone = compare_runs([half])
    assert (alone.rows[0].method, alone.budget) == ("half", 50.0)
    assert alone.notes == (f"not finished: {half}",)


def test_diverged_run_counts_with_its_last_accuracy(tmp_path: Path) -> None:
    fine = write_curve(tmp_path / "a", {0.0: 0.1, 200.0: 0.8}, method_title="A", seed=0)
    broken = write_curve(tmp_path / "b", {0.0: 0.1, 30.0: 0.02}, method_title="A", seed=1, status="diverged")
    comparison = compare_runs([fine, broken])
    assert comparison.budget == 200.0
    assert comparison.rows[0].accuracy == pytest.approx(0.41)
    assert comparison.notes == ("A, seed 1, diverged; its last accuracy counts",)


def test_a_run_without_a_finite_value_leaves_its_method_no_mean(tmp_path: Path) -> None:
    made = [
        write_run(tmp_path / f"{method}{seed}", [evaluation(0.0, 0.1), evaluation(200.0, 0.8) | last], fields)
        for method in "AB"
        for seed, last in enumerate(({}, {"accuracy": None} if method == "A" else {}))
        for fields in [{"method_title": method, "seed": seed}]
    ]
    comparison = compare_runs(made)
    assert [row[:3] for row in comparison.table()[1:]] == [["B", "2", "80.00 ± 0.00"], ["A", "2", "- ± -"]]
    assert comparison.target == 0.76
    assert list(comparison.charts()) == ["accuracy", "density", "bytes"]


def test_stand_in_short_and_repeated_seeds_are_noted_once(tmp_path: Path) -> None:
    fields = {"stand_in": "EMNIST stands in for FEMNIST", "short": True, "seed": 3}
    made = [write_curve(tmp_path / name, {0.0: 0.1, 200.0: 0.8}, **fields) for name in "ab"]
    notes = compare_runs(made).notes
    assert len(notes) == 3
    assert "same seed" in notes[0]
    assert notes[1].startswith("Short run")
    assert notes[2] == "Stand-in data: EMNIST stands in for FEMNIST."


@pytest.mark.parametrize("key", ["task", "fleet"])
def test_runs_of_different_kinds_are_refused(tmp_path: Path, key: str) -> None:
    first = write_curve(tmp_path / "a", {0.0: 0.1, 200.0: 0.8}, **{key: "one"})
    second = write_curve(tmp_path / "b", {0.0: 0.1, 200.0: 0.8}, **{key: "two"})
    with pytest.raises(ValueError, match=f"differ in {key}: one .*two .*compare one {key} at a time"):
        compare_runs([first, second])


def test_wrong_arguments_are_refused(dirs: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"target is 80: give the accuracy as a fraction"):
        compare_runs(dirs, target=80)
    with pytest.raises(ValueError, match="No runs to compare"):
        compare_runs([])


def test_everything_is_written(study: list[Path], tmp_path: Path) -> None:
    comparison = compare_runs(study)
    folder = tmp_path / "deep" / "out"
    comparison.write(folder)
    assert {file.name for file in folder.iterdir()} == {"comparison.csv", "comparison.md"}
    assert comparison.rows[0].method == "FedGMR"
    assert (folder / "comparison.csv").read_text() == comparison.csv()
    assert (folder / "comparison.md").read_text(encoding="utf-8") == comparison.markdown()
    assert list(comparison.charts()) == ["accuracy", "density", "bytes"]
