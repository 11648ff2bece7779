import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedgmr.paper.accuracy import (
    Kind,
    accuracy_at_t_star,
    best_views,
    evaluations_around,
    mean_relative_improvement,
)
from fedgmr.paper.numbers import Paper
from fedgmr.reporting.records import read_run

from .conftest import write_run


def test_ten_evaluations_before_t_star_and_ten_after(tmp_path: Path, paper: Paper) -> None:
    # Evaluations at 0, 800, 1600, ...; 70,000 s lies between number 87 (69,600 s) and 88 (70,400 s).
    run = read_run(write_run(tmp_path / "run", [number / 1000 for number in range(101)]))
    assert paper.t_star("femnist", run.summary["seconds"]) == 70_000
    assert evaluations_around(run, 70_000) == pytest.approx(np.arange(78, 98) / 1000)
    assert evaluations_around(run, 69_600) == pytest.approx(np.arange(78, 98) / 1000)  # at t* counts as before
    measure = accuracy_at_t_star([run], paper, "femnist")
    assert measure is not None
    assert measure.mean == pytest.approx(8.75)
    assert measure.std == pytest.approx(0.1 * np.sqrt(35))  # sample variance of 1..n is n(n + 1)/12
    assert (measure.seeds, measure.seeds_std) == (1, None)


def test_a_short_run_has_its_t_star_at_the_same_share_and_a_smaller_window(tmp_path: Path, paper: Paper) -> None:
    run = read_run(write_run(tmp_path / "run", [0.1, 0.2, 0.3, 0.4, 0.6], short=True))
    assert paper.t_star("femnist", run.summary["seconds"]) == pytest.approx(run.summary["seconds"] * 7 / 8)
    assert list(evaluations_around(run, paper.t_star("femnist", run.summary["seconds"]))) == [0.4, 0.6]
    assert list(evaluations_around(run, 1e9)) == [0.6]


def test_over_seeds(tmp_path: Path, paper: Paper) -> None:
    runs = [
        read_run(write_run(tmp_path / f"{seed}", [level] * 101, seed=seed)) for seed, level in enumerate((0.8, 0.82))
    ]
    measure = accuracy_at_t_star(runs, paper, "femnist")
    assert measure is not None
    assert (measure.mean, measure.std, measure.seeds) == (pytest.approx(81), pytest.approx(0), 2)
    assert measure.seeds_std == pytest.approx(np.sqrt(2))


def test_views(tmp_path: Path, paper: Paper) -> None:
    merged, padded = [0.5] * 101, [0.4, 0.6, 0.8] * 33 + [0.4, 0.6]
    run = read_run(write_run(tmp_path / "run", merged, padded=padded))
    # Evaluations 78 to 97: 7 of 0.4, 7 of 0.6, 6 of 0.8 padded; 7 of 0.5, 7 of 0.6, 6 of 0.8 the larger.
    means = {kind: accuracy_at_t_star([run], paper, "femnist", kind) for kind in get_args(Kind)}
    assert {kind: measure and measure.mean for kind, measure in means.items()} == {
        "merged": pytest.approx(50),
        "best": pytest.approx((7 * 40 + 7 * 60 + 6 * 80) / 20),
        "larger": pytest.approx((7 * 50 + 7 * 60 + 6 * 80) / 20),
    }
    on_test = read_run(write_run(tmp_path / "on_test", merged, padded=padded, best_view=None, decides_on_test=True))
    assert accuracy_at_t_star([run, on_test], paper, "femnist", "best") is None
    assert accuracy_at_t_star([run, on_test], paper, "femnist", "larger") is not None
    assert best_views([run, on_test, run]) == "padded"
    before = read_run(write_run(tmp_path / "before", merged))
    assert accuracy_at_t_star([run, before], paper, "femnist", "larger") is None
    alone = read_run(write_run(tmp_path / "alone", merged, views={"merged": {}}, best_view="merged"))
    for kind in get_args(Kind):  # a method without sub-models
        measure = accuracy_at_t_star([alone], paper, "femnist", kind)
        assert measure is not None
        assert measure.mean == pytest.approx(50)


def test_a_view_that_is_tested_seldom(tmp_path: Path, paper: Paper) -> None:
    directory = write_run(tmp_path / "run", [0.5] * 101, views={}, best_view="level 0.5")
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for number in range(0, 101, 10):
        lines[number]["views"] = {"level 0.5": {"accuracy": number / 100, "loss": 1.0}}
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    measure = accuracy_at_t_star([read_run(directory)], paper, "femnist", "best")
    assert measure is not None
    assert measure.mean == pytest.approx(85)  # evaluations 80 and 90


def test_improvement_by_hand() -> None:
    # 60 over 50 is 20 %, over 40 is 50 %.
    assert mean_relative_improvement({"fedgmr": 60.0, "fedavg": 50.0, "fjord": 40.0}) == pytest.approx(35)
