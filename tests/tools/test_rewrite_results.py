"""Kept runs of an earlier release: rewritten once, whole, and found again by their new keys."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import rewrite_results
from experiments.sweep.runs import small as small_now

from fedgmr.experiments.run import run_recipe
from fedgmr.experiments.seal import verify_run
from fedgmr.experiments.sweep import find_finished, recipe_key
from fedgmr.experiments.sweep.plan import run_name
from fedgmr.recipe import SCHEMA_VERSION, Recipe
from fedgmr.settings.text import dump, read_mapping

ROOT = Path(__file__).parents[2]
OLD = "0123456789ab"


def small() -> Recipe:
    """The recipe with the batch norm of version 1, which tested with running statistics."""
    return replace(small_now(), evaluation=replace(small_now().evaluation, norm="running"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as version 1 left it, in a directory with an old key."""
    directory = tmp_path_factory.mktemp("kept") / f"small-fedgmr-s3-{OLD}"
    run_recipe(small(), directory)
    data = read_mapping(directory / "recipe.yaml")
    data["schema_version"] = 1
    data["execution"]["fused"] = True
    (directory / "recipe.yaml").write_text(dump(data))
    return directory


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "store" / finished.name)
    shutil.copytree(finished, tmp_path / "store" / "deeper" / "my-run")
    return tmp_path / "store"


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_recipes_and_names_are_new_and_the_rest_is_as_it_was(store: Path) -> None:
    recipe, before = small(), contents(store)
    with pytest.warns(UserWarning, match="schema_version is 1"):
        assert find_finished([recipe], [store]) == {}
    assert rewrite_results.main([str(store)]) == 0
    key = recipe_key(recipe)
    name = run_name(recipe, key)
    assert {path.name for path in store.iterdir()} == {name, "deeper"}
    assert find_finished([recipe], [store / name]) == {key: store / name}
    assert find_finished([recipe], [store / "deeper"]) == {key: store / "deeper" / "my-run"}

    after = contents(store)
    old = {path.replace(OLD, key): text for path, text in before.items()}
    recipes = {path for path in old if path.endswith("recipe.yaml")}
    assert set(after) == set(old)
    assert {path for path in old if after[path] != old[path]} == recipes
    for path in recipes:
        text = re.sub(r"  fused: true\n", "", old[path].decode())
        assert after[path].decode() == text.replace("schema_version: 1\n", f"schema_version: {SCHEMA_VERSION}\n")


@pytest.mark.parametrize(
    ("task", "before", "trained", "tested"),
    [
        ("imagenet100", "running", "tracked", "running"),
        ("imagenet100", "static", "batch", "rebuilt"),
        ("imagenet100", "batch", "batch", "batch"),
        ("imagenet100", None, None, "running"),
        ("cifar10", "static", "batch", None),
    ],
)
def test_the_two_halves_of_norm_are_told_apart(
    task: str, before: str | None, trained: str | None, tested: str | None
) -> None:
    data = {"schema_version": 2, "task": {"name": task}, "method": {"local": {"norm": before} if before else {}}}
    after = rewrite_results.upgrade(data)
    assert after["method"]["local"].get("norm") == trained
    assert after.get("evaluation", {}).get("norm") == tested
    assert data["schema_version"] == 2, "what is given stays"


def test_a_second_time_changes_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite_results.main([str(store)])
    assert capsys.readouterr().out.endswith("2 runs rewritten.\n")
    before = contents(store)
    assert rewrite_results.main([str(store)]) == 0
    assert capsys.readouterr().out == "0 runs rewritten.\n"
    assert contents(store) == before


def test_an_interrupted_rewrite_is_finished(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk is gone")

    before = contents(store)
    with monkeypatch.context() as patch:  # a recipe is replaced whole or not at all
        patch.setattr(os, "replace", fail)
        assert rewrite_results.main([str(store)]) == 2
        assert contents(store) == before
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        assert rewrite_results.main([str(store)]) == 2
        assert set(contents(store)) == set(before)
        assert contents(store) != before
    assert rewrite_results.main([str(store)]) == 0
    assert (store / run_name(small(), recipe_key(small()))).is_dir()
    assert rewrite_results.main([str(store)]) == 0


def test_old_runs_get_their_digests(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = store / "deeper" / "my-run"
    sealed = json.loads((run / "summary.json").read_text())
    new = ("recipe_digest", "rows", "rows_digest", "digest")
    (run / "summary.json").write_text(json.dumps({key: sealed[key] for key in sealed if key not in new}))
    assert rewrite_results.main([str(run)]) == 0
    assert json.loads((run / "summary.json").read_text()) == sealed
    assert verify_run(run).startswith("finished, 4 rows")
    metrics = run / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    assert rewrite_results.main([str(run)]) == 2
    assert "metrics.jsonl does not hold the 4 rows" in capsys.readouterr().err


def test_a_recipe_of_another_run_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store / "deeper" / "my-run" / "recipe.yaml"
    path.write_text(path.read_text().replace("\nseed: 3\n", "\nseed: 4\n"))
    assert rewrite_results.main([str(path.parent)]) == 2
    assert "recipe.yaml is not the recipe that summary.json was written for" in capsys.readouterr().err


def test_refusals(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = store / run_name(small(), recipe_key(small()))
    target.mkdir()
    assert rewrite_results.main([str(store)]) == 2
    assert f"{target} is there: remove one of them." in capsys.readouterr().err
    target.rmdir()
    path = store / "deeper" / "my-run" / "recipe.yaml"
    path.write_text(path.read_text().replace("training:", "trainig:"))
    assert rewrite_results.main([str(store)]) == 2
    assert re.search(r"my-run.recipe.yaml cannot be rewritten: trainig is not a known key", capsys.readouterr().err)


def test_the_runs_kept_with_the_project_are_up_to_date(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    runs = [path.parent for path in (tmp_path / "results").rglob("recipe.yaml")]
    assert len(runs) >= 35
    assert list(rewrite_results.rewrite_runs(tmp_path)) == []
    assert [run for run in runs if verify_run(run).endswith("without digests")] == []
