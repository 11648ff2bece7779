"""Shares inside each level: the rows of a run against a direct computation with dense masks, whatever the way there."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.recipes import FLEET, recipe

from fedgmr.experiments import shares as module
from fedgmr.experiments.progress import RunInProgress
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.shares import Shares
from fedgmr.recipe import recipe_from
from fedgmr.server.server import Server

LEVELS = ["level 0.05", "level 0.1", "level 0.2", "level 0.5"]


def dense(server: Server) -> dict[str, Any]:
    """The same with masks and in float64, as the definition says it."""
    model, levels = server.model.double(), server.levels.levels
    masks = [levels <= level for level in range(len(server.ladder) - 1)]

    def inside(vector: torch.Tensor, own: list[torch.Tensor]) -> dict[str, float]:
        return {name: float(vector[mask].sum() / vector.sum()) for name, mask in zip(LEVELS, own, strict=True)}

    found: dict[str, Any] = {"weight": inside(model.abs(), masks), "norm": inside(model**2, masks)}
    for client in sorted(server.buffer):
        c = server.buffer[client]
        if c.version != server.tick - 1 or c.level != len(server.ladder) - 1:
            continue
        values, own = c.values, masks
        if c.levels is not None:
            values = torch.zeros_like(server.model).scatter(0, c.levels.order_of(len(c.values)), c.values)
            own = [c.levels.mask(level) for level in range(len(server.ladder) - 1)]
        assert server.previous is not None
        found["update"] = inside((values.double() - server.previous.double()) ** 2, own)
        break
    return found


@pytest.mark.parametrize(
    ("task", "method"),
    [("dense", "fedgmr"), ("dense", "fedgmr_without_buffer"), ("dense", "fiarse"), ("wide", "heterofl")],
)
def test_the_rows_of_a_run_against_dense_masks(task: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[tuple[dict[str, Any], float | None]] = []
    measure = RunInProgress._measure

    def noted(self: RunInProgress, seconds: float, shares: Shares) -> Any:
        server = self.assembly.server
        padded = server.padded()
        apart = None if padded is None else float((padded[0] - server.model).double().square().sum())
        length = float(server.model.double().square().sum())
        expected.append((dense(server), None if apart is None else apart / length))
        return measure(self, seconds, shares)

    monkeypatch.setattr(RunInProgress, "_measure", noted)
    fleet = FLEET if task == "dense" else {**FLEET, "scale": 0.2}  # links for a larger model
    result = run_recipe(recipe_from(recipe(task, method, seconds=400.0, fleet=fleet)), None)
    assert len(result.history) == len(expected) > 5
    fresh = 0
    for row, (shares, distance) in zip(result.history, expected, strict=True):
        assert row["shares"].keys() == shares.keys()
        for name, values in shares.items():
            assert row["shares"][name] == pytest.approx(values, rel=1e-5), name
        fresh += "update" in row["shares"]
        padded = row.get("views", {}).get("padded", {})
        assert padded.get("distance") == (None if distance is None else pytest.approx(distance, rel=1e-4, abs=1e-9))
        assert list(row["shares"]["norm"]) == LEVELS
        assert all(one <= other for one, other in itertools.pairwise(row["shares"]["norm"].values()))
    assert fresh, "a fresh update of the whole model was there"


def test_sums_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    values, levels = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), torch.tensor([0, 1, 0, 2, 3], dtype=torch.uint8)
    assert module._by_level(values, levels, 3).tolist() == [5.0, 2.0, 8.0, 16.0]  # the last in no sub-model
    assert module._total(values).tolist() == [31.0]
    monkeypatch.setattr(module, "_BLOCK", 2)
    assert module._by_level(values, levels, 3).tolist() == [5.0, 2.0, 8.0, 16.0]
    assert module._total(values).tolist() == [31.0]
    assert module._quotient(1.0, 3.0) == 0.333333
    assert module._quotient(1.0, 0.0) is module._quotient(float("nan"), 1.0) is None


def test_nothing_is_measured_without_sub_models() -> None:
    result = run_recipe(recipe_from(recipe("dense", "fedavg", seconds=200.0)), None)
    assert all("shares" not in row for row in result.history)


def test_recording_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = recipe_from(recipe("dropped", "fedgmr", seconds=300.0))
    measured = run_recipe(settings, None)
    monkeypatch.setattr(Shares, "__init__", lambda self, server: vars(self).update(_names=[], _sums={}))
    monkeypatch.setattr(Shares, "compare", lambda self, padded: None)
    plain = run_recipe(settings, None)

    def rest(row: Any) -> dict[str, Any]:
        kept = {name: value for name, value in row.items() if name not in ("wall", "shares")}
        views = {name: {**view, "distance": None} for name, view in row.get("views", {}).items()}
        return {**kept, "views": views}

    assert "shares" in measured.history[-1]
    assert "shares" not in plain.history[-1]
    assert [rest(row) for row in measured.history] == [rest(row) for row in plain.history]


def test_rows_are_the_same_after_a_resume(tmp_path: Path) -> None:
    data = recipe("dense", "fedgmr", seconds=300.0, checkpoint={"every": 1, "keep": 100})
    whole = run_recipe(recipe_from(data), tmp_path / "run")
    files = sorted((tmp_path / "run" / "checkpoints").iterdir())
    for file in files[len(files) // 2 :]:
        file.unlink()
    (tmp_path / "run" / "summary.json").unlink()
    resumed = resume_run(tmp_path / "run")
    assert resumed.history["shares"] == whole.history["shares"]
