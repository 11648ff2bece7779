import math
from pathlib import Path

import numpy as np
import pytest

from fedgmr.reporting.records import Curve, read_run

from .conftest import RECIPE, evaluation, realistic_lines, write_curve, write_run


def test_columns_have_one_row_per_evaluation_and_one_column_per_client(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", realistic_lines("FedGMR", 0), {}))
    history = run.history
    assert history.seconds.shape == history.tick.shape == history.bytes_server.shape == (31,)
    for column in (history.density, history.level, history.staleness, history.updates, history.bytes_up):
        assert column.shape == (31, 10)
    assert run.recipe_text == RECIPE
    assert np.isnan(history.staleness[0]).all()
    assert history.staleness[1].tolist() == list(range(10))


def test_accuracy_at_is_the_last_evaluation_at_or_before(small_run: Path) -> None:
    run = read_run(small_run)
    assert run.accuracy_at(99.9) == 0.5
    assert run.accuracy_at(100.0) == 0.8
    assert run.accuracy_at(1e9) == 0.7
    assert math.isnan(run.accuracy_at(-1.0))


def test_the_way_to_a_target(small_run: Path) -> None:
    run = read_run(small_run)
    assert run.time_to(0.8) == 100.0
    assert run.time_to(0.6) == 100.0
    assert run.time_to(0.81) is None
    assert run.bytes_to(0.8) == 180_000_000  # 100 s of 1 + 0.5 MB/s down and 0.2 + 0.1 MB/s up
    assert run.bytes_to(0.81) is None


def test_half_written_last_line_is_ignored(tmp_path: Path) -> None:
    lines = [evaluation(0.0, 0.1), evaluation(50.0, 0.5)]
    run = read_run(write_run(tmp_path / "run", lines, None, tail='{"seconds": 100.0, "tick": 1'))
    assert run.history.seconds.tolist() == [0.0, 50.0]
    assert (run.status, run.title, run.seconds, run.final_accuracy) == ("unfinished", "run", 50.0, 0.5)


def test_broken_line_before_the_end_is_an_error(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [evaluation(0.0, 0.1)], {}, tail='{"seconds":\n{}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl line 2 is not valid JSON"):
        read_run(directory)


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        (["recipe.yaml"], "recipe.yaml missing"),
        (["metrics.jsonl"], "metrics.jsonl missing"),
        (["recipe.yaml", "metrics.jsonl"], "recipe.yaml and metrics.jsonl missing"),
    ],
)
def test_directory_that_is_not_a_run_is_named_with_what_is_missing(
    small_run: Path, removed: list[str], said: str
) -> None:
    for name in removed:
        (small_run / name).unlink()
    with pytest.raises(ValueError, match="not a run directory") as caught:
        read_run(small_run)
    assert str(caught.value) == f"{small_run} is not a run directory: {said}."


def test_missing_directory_and_missing_evaluations(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere is not a run directory: there is no such directory"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no complete evaluation"):
        read_run(write_run(tmp_path / "empty", [], None, tail='{"seco'))


def test_columns_that_are_not_tables_are_named(tmp_path: Path) -> None:
    short = evaluation(10.0, 0.2, density=[1.0])
    with pytest.raises(ValueError, match="'density' is not a table"):
        read_run(write_run(tmp_path / "ragged", [evaluation(0.0, 0.1), short], {}))
    without = {key: value for key, value in short.items() if key != "bytes_up"}
    with pytest.raises(ValueError, match="no 'bytes_up'"):
        read_run(write_run(tmp_path / "missing", [without], {}))
    with pytest.raises(ValueError, match="'density' should hold one number per client"):
        read_run(write_run(tmp_path / "flat", [evaluation(0.0, 0.1, density=0.5)], {}))


def test_summary_of_another_version_is_refused(small_run: Path, tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [evaluation(0.0, 0.1)], {"schema_version": 2})
    with pytest.raises(ValueError, match="schema_version 2"):
        read_run(directory)
    (small_run / "summary.json").write_text('{"schema')
    with pytest.raises(ValueError, match=r"summary\.json is not valid JSON"):
        read_run(small_run)


def test_average_curve_holds_values_between_evaluations(tmp_path: Path) -> None:
    first = read_run(write_curve(tmp_path / "a", {0.0: 0.1, 10.0: 0.3, 20.0: 0.5}))
    second = read_run(write_curve(tmp_path / "b", {0.0: 0.2, 12.0: 0.4, 20.0: 0.7}))
    curve = Curve.average([first, second], lambda run: run.history.accuracy)
    assert curve.seconds.tolist() == [0.0, 12.0, 20.0]  # 10 is a near duplicate of 12
    assert curve.mean == pytest.approx([0.15, 0.35, 0.6])
    assert curve.spread == pytest.approx([0.1 / 2**0.5, 0.1 / 2**0.5, 0.2 / 2**0.5])
    assert Curve.average([first], lambda run: run.history.accuracy).spread is None


def test_average_curve_ends_with_the_shortest_run_that_did_not_diverge(tmp_path: Path) -> None:
    long = read_run(write_curve(tmp_path / "a", {0.0: 0.1, 10.0: 0.3, 20.0: 0.5, 30.0: 0.6}))
    short = read_run(write_curve(tmp_path / "b", {0.0: 0.1, 10.0: 0.5, 20.0: 0.7}))
    broken = read_run(write_curve(tmp_path / "c", {0.0: 0.1, 10.0: 0.05}, status="diverged"))
    assert Curve.average([long, short], lambda run: run.history.accuracy).seconds.tolist() == [0, 10, 20]
    curve = Curve.average([long, broken], lambda run: run.history.accuracy)
    assert curve.seconds.tolist() == [0, 10, 20, 30]
    assert curve.mean == pytest.approx([0.1, 0.175, 0.275, 0.325])
