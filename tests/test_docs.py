"""The documents against the code: links, file names, commands, recipe keys with their defaults, imports, versions."""

import ast
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import write_recipes
from packaging.requirements import Requirement

import fedgmr
from fedgmr.cli.main import make_parser
from fedgmr.recipe import load_recipe, recipe_from
from fedgmr.settings.text import read_mapping

ROOT = Path(__file__).parents[1]
FOLDERS_OF_DOCUMENTS = ("docs", "examples", "benchmarks")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for name in FOLDERS_OF_DOCUMENTS for path in (ROOT / name).rglob("*.md"))]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDERS = (".ci", "benchmarks", "docs", "examples", "fedgmr", "recipes", "results", "tests", "tools")


@pytest.fixture(params=DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def document(request: pytest.FixtureRequest) -> Path:
    path = request.param
    assert isinstance(path, Path)
    return path


def test_all_documents_are_there() -> None:
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    docs = ("dependencies", "getting-started", "recipes", "run-directory")
    expected = {
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *(f"docs/{name}.md" for name in docs),
    }
    assert expected <= names


def test_named_files_exist(document: Path) -> None:
    """Modules by any part of their path that ends it, and paths from the root; runs/ is what users make."""
    text = document.read_text()
    code = " ".join([*re.findall(r"`([^`\n]+)`", FENCE.sub("", text)), *(body for _, body in FENCE.findall(text))])
    words = {word.strip(".,:;()'\"") for word in re.split(r"[\s=]+", code)}
    modules = {word for word in words if re.fullmatch(r"[\w./-]+\.py", word)}
    paths = {word for word in words if word.partition("/")[0] in FOLDERS and re.fullmatch(r"[\w.-]+/[\w./-]*", word)}
    known = [f"/{path.relative_to(ROOT).as_posix()}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert [word for word in modules if not any(path.endswith(f"/{word}") for path in known)] == []
    assert [word for word in paths if not (ROOT / word).exists()] == []


def test_commands_are_understood(document: Path) -> None:
    for command in _commands(document.read_text()):
        _, *arguments = shlex.split(command.partition(" > ")[0].replace("...", ""), comments=True)
        try:
            make_parser().parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{document.name}: {command}")


def test_python_blocks_compile_and_import_what_there_is(document: Path) -> None:
    for language, body in FENCE.findall(document.read_text()):
        if language == "python":
            nodes = [node for node in ast.walk(ast.parse(body)) if isinstance(node, ast.ImportFrom)]
            for module, name in ((node.module or "", alias.name) for node in nodes for alias in node.names):
                assert not module.startswith("fedgmr") or hasattr(import_module(module), name), f"{module}.{name}"


def test_yaml_blocks_are_recipes_or_parts_of_one(document: Path, tmp_path: Path) -> None:
    whole = {"seconds": 1, "task": "mnist5k", "method": "fedgmr"}
    for language, body in FENCE.findall(document.read_text()):
        if language == "yaml":
            (tmp_path / "block.yaml").write_text(body)
            recipe_from(whole | read_mapping(tmp_path / "block.yaml"))


def test_blocks_are_of_languages_that_are_looked_at(document: Path) -> None:
    found = {language for language, _ in FENCE.findall(document.read_text())}
    assert found <= {"", "sh", "python", "py", "yaml", "toml", "bibtex"}, "py: shown, and not run"


def test_prose_is_wrapped(document: Path) -> None:
    if document.name != "results.md":  # written by `fedgmr results`
        lines = FENCE.sub("", document.read_text()).splitlines()
        assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "    "))] == []


def test_no_absolute_paths(document: Path) -> None:
    assert re.findall(r"(?<![\w.:/<)-])/(?:[\w.-]+/)+[\w.-]*", document.read_text()) == []


def test_make_targets_and_variables_are_real(document: Path) -> None:
    makefile, text = (ROOT / "Makefile").read_text(), document.read_text()
    code = "\n".join([*re.findall(r"`([^`\n]+)`", FENCE.sub("", text)), *(body for _, body in FENCE.findall(text))])
    for target in re.findall(r"^make ([a-z-]+)", code, re.MULTILINE):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target
    for variable in re.findall(r"^make .*?\b([A-Z_]+)=", code, re.MULTILINE):
        assert re.search(rf"^{variable} \?=", makefile, re.MULTILINE), variable


def test_makefile_names_tests_that_exist() -> None:
    named = re.findall(r"tests/[\w/]+\.py", (ROOT / "Makefile").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_changelog_has_this_version_on_top() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == fedgmr.__version__


def test_pins_lie_within_the_ranges() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        Requirement(text) for text in (*project["dependencies"], *extras["demo"], *extras["docs"], *extras["dev"])
    ]
    assert [str(entry) for entry in wanted if not entry.specifier.contains(pins[entry.name.lower()])] == []


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text().lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(entry for extra in project["optional-dependencies"].values() for entry in extra),
    ]
    assert [entry for entry in wanted if Requirement(entry).name.lower() not in text] == []


def test_readme_shows_the_example_and_the_demo_as_they_are() -> None:
    readme, example = (ROOT / "README.md").read_text(), (ROOT / "examples" / "own_task.py").read_text()
    blocks = [body for language, body in FENCE.findall(readme) if language == "python" and "Task(" in body]
    assert len(blocks) == 1
    assert blocks[0] in example
    assert f"{load_recipe('quickstart').seconds:,.0f} virtual seconds" in readme


def test_example_runs() -> None:
    command = [sys.executable, str(ROOT / "examples" / "own_task.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    header, first, *_, last = done.stdout.splitlines()
    assert header.split() == ["seconds", "accuracy", "mean", "density"]
    assert float(first.split()[1]) < 0.7 < 0.9 < float(last.split()[1])
    assert float(first.split()[2]) < float(last.split()[2])


def test_example_of_a_callback_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "own_callback.py"), run_name="__main__")
    *lines, stopped, handed = capsys.readouterr().out.splitlines()
    assert [line.split()[4] for line in lines] == ["0.05", "0.10", "0.20", "0.50", "1.00"], "every level of the ladder"
    assert stopped.endswith("every client has the whole model.")
    assert handed == "Client 9 is handed merged: 4482 parameters."


def test_example_of_own_nets_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "own_nets.py"))["main"](seconds=120)
    lines = capsys.readouterr().out.splitlines()
    accuracies = [float(line.partition("accuracy ")[2].split()[0]) for line in lines]
    assert [line.partition(":")[0] for line in lines] == ["Stripes (a small ResNet)", "Counting (a small Transformer)"]
    assert accuracies[0] > 0.8
    assert accuracies[1] > 0.3  # one of 24 by chance


def test_example_of_a_policy_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "own_policy.py"), run_name="__main__")
    updates, accuracy = capsys.readouterr().out.split("; accuracy ")
    counts = json.loads(updates.partition(": ")[2])
    # Six of ten rest, and three of the other four are asked, so nobody is left far behind.
    assert max(counts) - min(counts) <= 3 < min(counts)
    assert float(accuracy) > 0.8


def test_regression_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "tabular_regression.py"), run_name="__main__")
    out, err = capsys.readouterr()
    header, first, *_, last, best = out.splitlines()
    assert header.split() == ["seconds", "MAE", "(kWh)", "RMSE", "(kWh)", "mean", "density"]
    assert float(first.split()[1]) > 10 > 1.2 > float(last.split()[1]) > 0.75, "0.8 is the mean size of the noise"
    assert float(last.split()[2]) > float(last.split()[1])
    assert best.endswith(" kWh.")
    assert "  MAE " in err
    assert "%" not in out + err


def test_recipe_document_has_every_key_as_the_settings_have_it() -> None:
    text, keys = (ROOT / "docs" / "recipes.md").read_text(), set(write_recipes.keys())
    assert [key.name for key in keys if not key.meaning] == []
    own = {key[:2] for key in keys if not key.name.startswith("fleet.links.N.trace.")}
    assert write_recipes.told(text) == own
    assert {key[:2] for key in keys} - own == {
        (name.replace("fleet.", "fleet.links.N."), default) for name, default in own if "fleet.trace." in name
    }
    assert write_recipes.rewritten(text) == text, "run python tools/write_recipes.py"


def test_run_directory_document_has_every_field() -> None:
    text = (ROOT / "docs" / "run-directory.md").read_text()
    result = fedgmr.simulate(_dot(), method="fedavg", fleet=[fedgmr.Link(down=1.0, up=1.0)], seconds=1)
    metrics, summary = (re.split(r"^## ", text, flags=re.MULTILINE)[part] for part in (1, 2))
    fields = [re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) for section in (metrics, summary)]
    assert fields[0] == [
        *result.history.columns,
        "checks_left",
        "metrics",
        "validation",
        "views",
        "shares",
        "clients",
        "trips",
        "away",
        "rates",
        "readings",
    ]  # where there are any
    assert [fields[1].pop(), fields[1].pop()] == ["digest", "models"]  # of the files
    rare = ("personal", "stopped", "problem", "period_needed", "advice", "time")
    assert [field for field in fields[1] if field not in rare] == list(result.summary)
    assert all(f"`{name}`" in summary for name in result.summary["versions"])


def _commands(text: str) -> Iterator[str]:
    """Lines of shell blocks and inline code that call fedgmr."""
    lines = [line for language, body in FENCE.findall(text) if language == "sh" for line in body.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in lines:
        line = re.sub(r"^python -m ", "", line.strip())
        if line.startswith("fedgmr "):
            yield line


def _dot() -> fedgmr.Task:
    import torch
    from torch import nn

    samples = torch.eye(2).repeat(20, 1), torch.arange(2).repeat(20)
    return fedgmr.Task(name="dot", model=lambda: nn.Linear(2, 2), train=samples, test=samples)
