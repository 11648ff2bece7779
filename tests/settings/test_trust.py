"""Import paths of settings that others wrote are followed only where they are trusted."""

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.recipes import recipe

from fedgmr.cli.main import main
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import read_recipe
from fedgmr.experiments.sweep import find_finished, recipe_key
from fedgmr.recipe import foreign_recipe, recipe_from
from fedgmr.settings.build import imported
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.settings.text import dump
from fedgmr.settings.trust import foreign_settings, import_paths

MODULE = """
from pathlib import Path
from dataclasses import dataclass
from e2e.tiny import dense
from fedgmr.submodels.rankings import Magnitude
Path(__file__).with_name("imported").touch()
@dataclass(frozen=True, kw_only=True)
class Ranking(Magnitude):
    pass
def method():
    from fedgmr import named_method
    return named_method("fedgmr")
"""
PATHS: list[dict[str, Any]] = [
    {"task": {"name": "foreign.tasks:dense"}},
    {"method": "foreign.tasks:method"},
    {"method": {"name": "foreign.tasks:method+gmr"}},
    {"method": {"name": "fedgmr", "ranking": "foreign.tasks:Ranking"}},
    {"method": {"name": "fedgmr", "ranking": {"kind": "foreign.tasks:Ranking"}}},
    {"methods": {"foreign.tasks:method": {"interval": 3}}},
    {"partition": {"kind": "foreign.tasks:Ranking"}},
]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that shows whether the foreign module was imported."""
    monkeypatch.delenv("FEDGMR_TRUST")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "__init__.py").touch()
    (tmp_path / "foreign" / "tasks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "foreign" / "imported"
    for name in [name for name in sys.modules if name.partition(".")[0] == "foreign"]:
        del sys.modules[name]


def data(**sections: Any) -> dict[str, Any]:
    return {**recipe("dense", seconds=40.0), "task": "mnist5k", "methods": {}, **sections}


@pytest.mark.parametrize("sections", PATHS)
def test_every_place_is_refused_before_it_is_imported(mark: Path, sections: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"'foreign.tasks:\w+', code .* not trusted here: give --trust foreign"):
        foreign_recipe(data(**sections))
    assert not mark.exists()


@pytest.mark.parametrize("sections", PATHS[:6])
def test_with_trust_and_in_ones_own_recipe(mark: Path, sections: dict[str, Any]) -> None:
    expected = recipe_from(data(**sections))
    for trust in ("foreign", "foreign.tasks"):
        assert foreign_recipe(data(**sections), [trust]) == expected
        assert foreign_recipe(data(**sections), trust) == expected  # one, not its letters
    if "methods" not in sections:
        assert foreign_recipe(data(**sections), import_paths(plain(expected))) == expected
    for other in ("foreig", "foreign.task", "tasks", "foreign.tasks.dense"):
        with pytest.raises(SettingError, match="not trusted"):
            foreign_recipe(data(**sections), [other])


def test_the_environment_names_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGMR_TRUST", "other, math")
    with foreign_settings():
        assert imported("math:sqrt", "task.name")(4.0) == 2.0
        with pytest.raises(SettingError, match="os:system"):
            imported("os:system", "task.name")
    assert imported("os:getcwd", "task.name")  # one's own settings again


def test_import_paths_of_a_recipe() -> None:
    method = {"name": "a.b:c+aux", "ranking": {"kind": "d:e"}, "title": "no: path"}
    whole = {"name": "x:y", "task": {"name": "f:g", "options": {"name": "h:i"}}, "method": method, "device": "cuda:1"}
    assert sorted(import_paths(whole)) == ["a.b:c", "d:e", "f:g"]
    fleet = {"links": [{"trace": {"kind": "drive"}}, {"trace": {"kind": "i:j", "pool": 2}}]}
    assert list(import_paths({"fleet": fleet})) == ["i:j"]


def test_verbs_on_run_directories(mark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "store" / "run"
    run.mkdir(parents=True)
    whole = {**plain(recipe_from(data())), "task": {"name": "foreign.tasks:dense", "options": {}}}
    (run / "recipe.yaml").write_text(dump(whole))
    assert main(["resume", str(run)]) == 2
    assert "task.name is 'foreign.tasks:dense', code" in capsys.readouterr().err
    assert main(["verify", str(run)]) == 0  # which imports nothing
    assert main(["results", str(run.parent), "--output", str(tmp_path / "results.md")]) == 0
    assert "not trusted" in (tmp_path / "results.md").read_text()
    with pytest.warns(UserWarning, match="not trusted"):
        assert find_finished([recipe_from(data())], [run.parent]) == {}
    assert not mark.exists()
    with pytest.raises(SettingError, match="not trusted"):
        resume_run(run)
    assert resume_run(run, trust=["foreign"]).summary["status"] == "finished"
    own = read_recipe(run, ["foreign"])
    assert find_finished([own], [run.parent]) == {recipe_key(own): run}  # the recipe that is asked for names it


VERBS = {
    "resume RUN": 2,
    "model RUN --to state_dict": 2,
    "report RUN": 0,
    "report STORE --output page.html": 0,
    "verify STORE": 0,
    "export STORE --to csv": 0,
    "results STORE --output results.md": 0,
    "table baselines --task femnist --heterogeneity high --split iid --store STORE --results STORE --no-run": 0,
}


@pytest.mark.parametrize("line", VERBS)
def test_no_verb_imports_for_a_finished_run(
    line: str, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was finished where its package is trusted."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "store" / "run"
    run_recipe(recipe_from(data(task="foreign.tasks:dense")), run)
    assert mark.exists()
    mark.unlink()
    for name in [name for name in sys.modules if name.partition(".")[0] == "foreign"]:
        del sys.modules[name]
    words = [word.replace("RUN", "store/run").replace("STORE", "store") for word in line.split()]
    with warnings.catch_warnings(action="ignore"):
        assert main(words) == VERBS[line]
    assert not mark.exists()


def test_trust_on_the_command_line(mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGMR_TRUST", "other")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.json").write_text(json.dumps(data(task="foreign.tasks:dense")))
    assert main(["show", "r.json"]) == 0
    assert mark.exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(dump(plain(recipe_from(data(task="foreign.tasks:dense")))))
    assert main(["resume", "run"]) == 2
    monkeypatch.setattr("fedgmr.cli.runs.finish_run", lambda *_: None)
    assert main(["resume", "run", "--trust", "foreign"]) == 0
