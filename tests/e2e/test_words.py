"""`list`, `show`, `schema`: what there is, what a recipe means, what one may say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.command import Command, environment, write_recipe
from e2e.recipes import RECIPES
from fedgmr.methods import BUILT_IN
from fedgmr.recipe import shipped_recipes


def test_list_names_everything(fedgmr: Command) -> None:
    ended = fedgmr("list")
    assert ended.code == 0
    for name in (
        *BUILT_IN,
        *shipped_recipes(),
        "mnist5k",
        "high",
        "medium",
        "low",
        "lte",
        "commute",
        "day_night",
        "custom",
    ):
        lines = [line for line in ended.out.splitlines() if line.split()[:1] == [name]]
        assert lines, name
        assert all(len(line.split()) > 2 for line in lines)  # and says what it is; a task and its recipe share a name


@pytest.mark.parametrize("form", ["yaml", "json"])
@pytest.mark.parametrize("name", ["quickstart", *RECIPES])
def test_show_is_a_recipe_that_means_itself(name: str, form: str, fedgmr: Command) -> None:
    source = name
    if name in RECIPES:
        source = str(write_recipe(fedgmr.folder / "r.json", RECIPES[name]))
    words = ["--json"] if form == "json" else []
    shown = fedgmr("show", source, *words)
    assert shown.code == 0, shown.err
    (fedgmr.folder / f"shown.{form}").write_text(shown.out)
    again = fedgmr("show", f"shown.{form}", *words)
    assert again.code == 0, again.err
    assert again.out == shown.out
    if form == "json":
        assert json.loads(shown.out)["method"]["name"]


def test_a_run_keeps_the_recipe_that_show_prints(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", RECIPES["cohort"])
    words = ("r.json", "seconds=50", "method.interval=7")
    shown = fedgmr("show", *words).out
    assert fedgmr("run", *words, "output=run").code == 0
    # What `auto` comes to is known only when a run starts.
    chosen = shown.replace("executor: auto", "executor: sequential").replace("sparse: auto", "sparse: 0.0")
    chosen = chosen.replace("threads: null", "threads: 1")
    assert (fedgmr.folder / "run" / "recipe.yaml").read_text() == chosen
    assert "interval: 7" in shown


def test_schema_is_json_schema(fedgmr: Command) -> None:
    ended = fedgmr("schema")
    assert ended.code == 0
    schema = json.loads(ended.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"seconds", "task", "method", "methods", "fleet"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False


def test_recipes_keep_to_the_schema(fedgmr: Command) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    check = jsonschema.Draft202012Validator(json.loads(fedgmr("schema").out))
    shipped = [yaml.safe_load(path.read_text()) for path in shipped_recipes().values()]
    resolved = []
    for name, data in RECIPES.items():
        source = write_recipe(fedgmr.folder / f"{name}.json", data)
        resolved.append(json.loads(fedgmr("show", str(source), "--json").out))
    for data in [*shipped, *RECIPES.values(), *resolved]:
        assert list(check.iter_errors(data)) == []
    assert list(check.iter_errors({**shipped[0], "trainig": {}}))


def test_the_installed_command(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "fedgmr"
    if not script.exists():
        pytest.skip("the command is not installed beside this python")
    words = [str(script), "run", "seconds=-1"]
    ended = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "fedgmr: seconds is -1: give a number above 0.\n"
    assert list(tmp_path.iterdir()) == []
