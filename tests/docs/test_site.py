"""The parts from which the site is made: pages with their links, generated pages, figures, and the check of the result.

Sphinx itself is not needed here; `make docs` builds the whole.
"""

import argparse
import re
from pathlib import Path, PurePosixPath

import pytest

import fedgmr
from building.api import python_reference
from building.check import faults
from building.commands import command_reference
from building.notebooks import raw_html
from building.stage import Stage, place_of
from building.tree import ROOT, documents, text_of
from fedgmr.cli.verbs import HELP
from figures.style import INK, svg_of

MARKS = re.findall(r"<!-- (\w+): (\w+) -->", "\n".join(text_of(path) for path in documents()))
FIGURES = {name for word, name in MARKS if word == "figure"}


def test_places_of_documents_and_of_files_that_pages_show() -> None:
    places = {
        "docs/recipes.md": "recipes.md",
        "docs/methods/README.md": "methods/README.md",
        "benchmarks/links.md": "benchmarks/links.md",
        "examples/notebooks/first-steps.ipynb": "examples/notebooks/first-steps.md",
        "docs/results/overview-fair.png": "results/overview-fair.png",
        "fedgmr/federation.py": "source/fedgmr/federation.py.md",
        "recipes": "source/recipes.md",
    }
    assert {path: str(place_of(PurePosixPath(path))) for path in places} == places
    assert len({place_of(path) for path in documents()}) == len(documents())


def test_links_lead_to_the_pages_of_the_site(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "source", {})
    text = "[a](../recipes.md#changing-settings) [b](../../fedgmr/federation.py) [c](../../README.md) [d](#here)"
    linked = stage.linked(PurePosixPath("docs/methods/fedgmr.md"), text)
    assert (
        linked
        == "[a](../recipes.md#changing-settings) [b](../source/fedgmr/federation.py.md) [c](../README.md) [d](#here)"
    )
    page = (tmp_path / "source/source/fedgmr/federation.py.md").read_text()
    assert page.startswith("---\norphan: true")
    assert (ROOT / "fedgmr/federation.py").read_text().strip() in page


def test_folder_is_shown_as_the_list_of_its_files(tmp_path: Path) -> None:
    Stage(tmp_path / "source", {}).linked(PurePosixPath("docs/recipes.md"), "[r](../recipes)")
    page = (tmp_path / "source/source/recipes.md").read_text()
    assert "- [paper/cifar10.yaml](recipes/paper/cifar10.yaml.md)" in page
    assert "task: cifar10" in (tmp_path / "source/source/recipes/paper/cifar10.yaml.md").read_text()


def test_marks_are_replaced_and_every_page_is_written(tmp_path: Path) -> None:
    made = {word: lambda name, word=word: f"made {word} {name}" for word in ("figure", "generated")}
    Stage(tmp_path / "source", made).fill(lambda path: f"# {path.stem}\n")
    index = (tmp_path / "source/index.md").read_text()
    assert "made figure restoration" in index
    assert ":caption: Understand" in index
    assert "Notebook: first steps <examples/notebooks/first-steps>" in index
    assert "made generated commands" in (tmp_path / "source/commands.md").read_text()
    assert "<!-- " not in "".join((tmp_path / "source" / place_of(path)).read_text() for path in documents())


def test_command_reference_has_every_verb() -> None:
    text = command_reference()
    assert re.findall(r"^## `fedgmr (\w+)`$", text, re.MULTILINE) == list(HELP)
    assert "### `fedgmr deploy local`" in text
    assert "| `--level D` | the sub-model of this density |" in text


def test_a_verb_has_its_sentence_its_usage_and_its_words() -> None:
    parser = argparse.ArgumentParser(prog="tool")
    verb = parser.add_subparsers().add_parser("cut", help="cut a model, see --at")
    verb.add_argument("files", nargs="+", metavar="FILE", help="50 %% of them | all")
    verb.add_argument("--at", choices=("low", "high"), required=True)
    verb.add_argument("-q", "--quiet", action="store_true", help="say nothing")
    assert command_reference(parser).splitlines() == [
        "## `tool cut`",
        "",
        "Cut a model, see `--at`.",
        "",
        "```text",
        "tool cut FILE ... --at low|high [--quiet]",
        "```",
        "",
        "| word | meaning |",
        "|---|---|",
        "| `FILE` | 50 % of them \\| all |",
        "| `--at low\\|high` |  |",
        "| `-q`, `--quiet` | say nothing |",
    ]


def test_python_reference_has_every_public_name() -> None:
    text = python_reference()
    named = re.findall(r"^### `(\w+)`$", text, re.MULTILINE)
    assert named == sorted((name for name in fedgmr.__all__ if name != "__version__"), key=str.lower)
    assert ".. autofunction:: fedgmr.experiments.model_files.write_model" in text


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figures_are_drawn_in_the_ink_of_the_page(name: str) -> None:
    svg = svg_of(name)
    assert re.match(r'<svg [^>]*role="img" aria-label="\w', svg)
    assert "currentColor" in svg
    assert INK not in svg
    assert "```" not in raw_html(svg, "drawn")[3:-3]


def test_every_figure_is_used() -> None:
    drawn = {path.stem for path in (ROOT / "docs/figures").glob("*.py")} - {"__init__", "style"}
    assert drawn == FIGURES


def test_check_finds_what_is_missing_and_what_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="#here"></a><a href="b.html#x"></a><a href="c.html"></a>')
    (tmp_path / "b.html").write_text('<a href="https://flower.ai"></a><script src="https://cdn/x.js"></script>')
    assert list(faults(tmp_path)) == [
        "a.html leads to b.html#x, a page without this anchor.",
        "a.html leads to c.html, which is not there.",
        "b.html fetches https://cdn/x.js.",
    ]
