"""Recipes: what is refused before any section is looked at, where recipes come from, and their schema."""

from pathlib import Path
from typing import Any

import pytest
from settings.test_build import accepts

from fedgmr.recipe import load_recipe, read_recipe_data, recipe_from, recipe_schema, shipped_recipes
from fedgmr.settings.refusals import SettingError

DATA: dict[str, Any] = {"seconds": 60, "task": "mnist5k", "method": "fedgmr"}


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"methods": {1: {"interval": 3}}}, "methods has the key 1, which is no text: put it in quotes."),
        ({"methods": {None: {}}}, "methods has the key null, which is no text: put it in quotes."),
        ({"methods": None}, "methods is null: give a mapping from method names to their settings."),
        ({"methods": {"fjord": None}}, "methods.fjord is null: give a mapping of settings."),
        ({"methods": {"fj*": {1: 2}}}, "methods.fj*.1 is not a known key: choose one of "),
        ({"method": {"name": None}}, "method.name is null: give the name of a method, see `fedgmr list`."),
        ({"method": {"name": ["fedavg"]}}, "method.name is ['fedavg']: give the name of a method"),
        ({"schema_version": 2}, "schema_version is 2: this release reads version 3; tools/rewrite_results.py"),
        ({"schema_version": 2.0}, "schema_version is 2.0: this release reads version 3; tools/rewrite_results.py"),
    ],
)
def test_refusals(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as refused:
        recipe_from({**DATA, **sections})
    assert str(refused.value).startswith(sentence)


def test_none_switches_a_section_off() -> None:
    words = ["evaluation.stop=none", "method.restoration.retreat=none"]
    recipe = recipe_from({**DATA, "evaluation": {"stop": {"patience": 3}}}, words)
    assert recipe.evaluation.stop is None
    assert recipe == recipe_from(DATA)


def test_a_directory_does_not_hide_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_recipe("quickstart").name == "quickstart"
    (tmp_path / "mine").mkdir()
    with pytest.raises(SettingError, match="The recipe 'mine' is neither a file nor one that ships"):
        load_recipe("mine")


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_schema_admits_every_recipe(name: str) -> None:
    assert accepts(recipe_schema(), read_recipe_data(name))


@pytest.mark.parametrize(
    ("sections", "admitted"),
    [
        ({"fleet": "low", "task": "mnist5k", "partition": "iid"}, True),
        ({"fleet": {"name": "low"}, "task": {"options": {"head": "whole"}}, "network": {"noise": 0}}, True),
        ({"interval": 3, "fleet": 3}, False),
        ({"network": "low"}, False),
        ({"evaluation": {"stop": "none"}}, True),
        ({"intervall": 3}, False),
    ],
)
def test_the_schema_admits_what_sections_by_method_may_be(sections: dict[str, Any], admitted: bool) -> None:
    data = {**DATA, "methods": {"fedgmr": sections}}
    assert accepts(recipe_schema(), data) == admitted
    if admitted:
        recipe_from(data)
    else:
        with pytest.raises(SettingError):
            recipe_from(data)
