"""Views: which are tested when, their numbers by hand, how the best is chosen, and their file."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.recipes import recipe

from fedgmr.experiments.result import Result, load
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.views import Views, best_view, compared
from fedgmr.files import VIEWS
from fedgmr.recipe import recipe_from
from fedgmr.tasks.metrics import Metric, top1

ACCURACY = Metric(measure=top1)
LEVELS = ["level 0.05", "level 0.1", "level 0.2", "level 0.5"]


def run(output: Path | None = None, *, seconds: float = 400.0, method: str = "fedgmr", **evaluation: Any) -> Result:
    return run_recipe(recipe_from(recipe("dense", method, seconds=seconds, evaluation=evaluation)), output)


def test_views_are_tested_at_their_pace() -> None:
    rows = run(every_seconds=10.0, padded_every=2, levels_every=5).history
    assert "views" not in rows[0], "nothing was merged yet"
    for number, row in enumerate(rows):
        expected = ["padded"] * (number % 2 == 0) + LEVELS * (number % 5 == 0)
        if row["seconds"] > 300.0:  # the last ten
            expected = ["padded", *LEVELS]
        assert list(row.get("views", {})) == (expected if number else [])
        assert "validation" in row


def test_a_ladder_that_ends_below_one(tmp_path: Path) -> None:
    """Nobody has the whole model, so the largest sub-model is a view of its own, and what its clients are handed."""
    links = [{"down": 20, "up": 5, "density": 0.5}, {"down": 4, "up": 1, "density": 0.2}]
    data = recipe(
        "normed",
        {"name": "fedgmr", "ladder": [0.2, 0.5]},  # type: ignore[arg-type]
        fleet={"name": "custom", "links": links, "scale": 1e-4},
        seconds=100.0,
        evaluation={"every_seconds": 20.0, "clients": 1},
    )
    live = run_recipe(recipe_from(data), tmp_path / "run")
    assert list(live.history[-1]["views"]) == ["padded", "level 0.2", "level 0.5"]
    for result in (live, load(tmp_path / "run", trust=["e2e"])):
        assert [result.view_for(client) for client in (0, 1)] == ["level 0.5", "level 0.2"]
        # 16 filters of 9 weights and 144 x 4 weights may be zero; 16 + 2 x 16 + 4 others are always there.
        kept = sum(int(tensor.count_nonzero()) for tensor in result.model_for(0).parameters())
        assert kept <= (9 * 16 + 576) // 2 + 52
    single = run_recipe(
        recipe_from(
            {
                **data,
                "method": {"name": "fedgmr_without_restoration", "ladder": [0.5]},
                "fleet": {**data["fleet"], "links": links[:1]},
            }
        ),
        None,
    )
    assert list(single.history[-1]["views"]) == ["padded", "level 0.5"]


@pytest.mark.filterwarnings("ignore:Nothing was learned")
def test_sub_models_are_handed_out_where_no_update_is_kept(tmp_path: Path) -> None:
    live = run(tmp_path / "run", seconds=1.0)
    assert live.history[-1]["tick"] == 0
    for result in (live, load(tmp_path / "run", trust=["e2e"])):
        assert result.final_views.names == ["merged", *LEVELS]
        kept = sum(int(tensor.count_nonzero()) for tensor in result.model_for(4).parameters())
        assert kept <= 0.05 * (16 * 16 + 16 * 4) + 20


def test_nothing_else_changes_with_the_views() -> None:
    def merged(result: Result) -> list[dict[str, Any]]:
        dropped = ("wall", "views", "validation")
        return [{name: value for name, value in row.items() if name not in dropped} for row in result.history]

    alone, all_of_them = run(views="merged"), run()
    assert merged(alone) == merged(all_of_them)
    assert all("views" not in row and "validation" not in row for row in alone.history)
    assert alone.summary["best_view"] == "merged"
    assert list(alone.summary["views"]) == ["merged"]


def test_padded_is_merged_where_everybody_is_whole() -> None:
    result = run(method="fedgmr", seconds=400.0)
    data = recipe("dense", "fedgmr", seconds=400.0)
    data["method"] = {"name": "fedgmr", "interval": 1, "restoration": {"patience": 1}}
    whole = run_recipe(recipe_from(data), None)
    assert set(whole.history[-1]["density"]) == {1.0}
    state, other = whole.views.state("merged"), whole.views.state("padded")
    assert all(torch.allclose(state[key], other[key], atol=1e-6) for key in state)
    state, other = result.views.state("merged"), result.views.state("padded")
    assert not all(torch.allclose(state[key], other[key], atol=1e-3) for key in state)


def test_a_level_is_cut_out_of_the_merged_model() -> None:
    views = run().views
    merged = views.state("merged")
    kept = [sum(int((views.state(name)[key] != 0).sum()) for key in merged) for name in LEVELS]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1] < sum(tensor.numel() for tensor in merged.values())
    for name in LEVELS:
        state = views.state(name)
        assert all(bool(((state[key] == merged[key]) | (state[key] == 0)).all()) for key in merged)


def test_the_best_view_is_better_by_more_than_a_standard_error() -> None:
    rows = [{"validation": 0.9, "views": {"padded": {"validation": 1.0}}}] * 3
    rows += [{"validation": 0.5, "views": {"padded": {"validation": 0.7}, "level 0.5": {"validation": 0.4}}}] * 10
    scores = compared(rows)
    expected = {"merged": 0.5, "padded": 0.7, "level 0.5": 0.4}  # the first three are too old
    assert scores == {name: [value] * 10 for name, value in expected.items()}
    # sqrt((0.5·0.5 + 0.7·0.3) / n) is below 0.2 from n = 11.5 on.
    assert best_view(scores, ACCURACY, 11) == "merged"
    assert best_view(scores, ACCURACY, 12) == "padded"
    error = Metric(measure=top1, name="error", unit="points", higher_is_better=False)
    assert best_view(scores, error, 12) == "level 0.5"
    # Differences of 0 and -0.2 in turn: -0.1 in the mean, with a standard error of 0.1 x sqrt(10 / 9) / sqrt(10).
    uneven = [0.5, 0.3] * 5
    assert best_view({"merged": [0.5] * 10, "padded": uneven}, error, 12) == "padded"
    raised = [value + 0.067 for value in uneven]
    assert best_view({"merged": [0.5] * 10, "padded": raised}, error, 12) == "merged", "0.033 is less than 0.0333"
    assert best_view({"merged": [0.5], "padded": [0.5], "level 0.5": [0.5]}, error, 12) == "merged"
    assert best_view({}, ACCURACY, 12) == "merged"
    # Errors in percent may be more than the whole: the standard error of a share is none of theirs.
    percent = Metric(measure=top1, name="MAPE", unit="%", higher_is_better=False, range=(0.0, math.inf))
    assert best_view({"merged": [2.0, 2.1], "padded": [1.5, 1.6]}, percent, 12) == "padded"
    assert best_view({"merged": [2.0, 2.1], "padded": [1.9, 2.1]}, percent, 12) == "merged", "-0.05, and its error 0.05"


def test_a_view_that_was_not_finite_is_not_the_best(tmp_path: Path) -> None:
    """Nor is one compared by other evaluations than the merged model, as in a short run by those after the first."""

    def row(merged: float | None, **views: float | None) -> dict[str, Any]:
        return {"validation": merged, "views": {name: {"validation": value} for name, value in views.items()}}

    error = Metric(measure=top1, name="error", unit="points", higher_is_better=False)
    rows = [row(4.0, padded=4.0), *[row(4.0, padded=3.0)] * 7, row(4.0, padded=None)]
    assert best_view(compared(rows[:-1]), error, 12) == "padded"
    assert best_view(compared(rows), error, 12) == "merged"
    assert best_view(compared([*rows[:-1], row(None, padded=3.0)]), error, 12) == "merged", "of which nothing is known"
    first = {"validation": 0.1}
    assert compared([first, row(0.9, padded=0.8)]) == {"merged": [0.9], "padded": [0.8]}
    result = run(tmp_path / "run", seconds=100.0)
    short = result.history[1:]
    assert len(result.history) < 10
    assert result.summary["views"]["merged"]["validation"] == statistics.fmean(each["validation"] for each in short)


def test_a_run_that_decides_on_the_test_set_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = recipe("dense", "fedgmr", seconds=200.0, evaluation={"validation": "test"})
    made = recipe_from(data)
    assert made.label.endswith("(decides on the test set)")
    result = run_recipe(made, tmp_path / "run")
    assert result.summary["decides_on_test"] is True
    assert result.summary["best_view"] is None
    assert "validation" not in result.history[-1]
    assert result.summary["validation_accuracy"] == result.final_accuracy, "nothing else was validated on"
    honest = run(seconds=200.0)
    assert honest.summary["decides_on_test"] is False
    assert honest.history[-1]["accuracy"] != result.history[-1]["accuracy"], "nothing is held out there"


def test_views_are_read_back(tmp_path: Path) -> None:
    result = run(tmp_path / "run")
    again = Views.read(tmp_path / "run" / VIEWS)
    assert again.names == result.views.names == ["merged", "padded", *LEVELS]
    for name in again.names:
        state, expected = again.state(name), result.views.state(name)
        assert set(state) == set(expected)
        assert all(torch.equal(state[key], expected[key]) for key in expected)


@pytest.mark.parametrize("method", ["fedgmr", "fedgmr_without_buffer"])
def test_views_are_the_same_after_a_resume(method: str, tmp_path: Path) -> None:
    data = recipe("dense", method, seconds=300.0, checkpoint={"every": 1, "keep": 1}, evaluation={"levels_every": 1})
    whole = run_recipe(recipe_from(data), tmp_path / "run")
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    (tmp_path / "run" / "summary.json").unlink()
    resumed = resume_run(tmp_path / "run")  # from its last tick: only the row at the end is new
    assert [json.loads(line)["accuracy"] for line in text.splitlines()] == resumed.history["accuracy"]
    assert resumed.history[-1]["views"] == whole.history[-1]["views"]
