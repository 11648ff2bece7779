"""The documents as a reader finds them: every link and anchor holds, and the table of contents has every page."""

from pathlib import PurePosixPath

import pytest

from building.assistants import llms_text
from building.contents import children, listed, sections
from building.tree import ROOT, anchors_of, documents, headings_of, links_of, text_of, without_code


@pytest.mark.parametrize("path", documents(), ids=str)
def test_links_and_anchors_hold(path: PurePosixPath) -> None:
    links = list(links_of(path, text_of(path)))
    assert [str(link.target) for link in links if not (ROOT / link.target).exists()] == []
    known = set(documents())
    anchored = [link for link in links if link.anchor]
    assert [link for link in anchored if link.target not in known] == [], "anchors are for documents"
    assert [link for link in anchored if link.anchor not in anchors_of(text_of(link.target))] == []


def test_every_document_is_in_the_table_of_contents_once() -> None:
    pages = listed()
    missing = sorted(map(str, set(documents()) - set(pages)))
    assert missing == [], "give it a line in docs/index.md, or a place in a folder whose README.md is there"
    assert len(set(pages)) == len(pages)


def test_every_entry_says_what_its_page_answers() -> None:
    text = text_of(PurePosixPath("docs/index.md"))
    entries = [entry for section in sections().values() for entry in section]
    assert len(entries) == text.count("\n- ["), "every line of the lists is read"
    assert [entry.title for entry in entries if not entry.answers.endswith(".")] == []
    assert list(sections())[:4] == ["Start", "Understand", "Guides", "Reference"]


def test_page_of_a_folder_brings_its_documents_in_the_order_of_its_links() -> None:
    pages = [path.name for path in children(PurePosixPath("docs/methods/README.md"))]
    assert pages[:3] == ["fedgmr.md", "fedavg.md", "fedasync.md"]
    assert children(PurePosixPath("docs/recipes.md")) == children(PurePosixPath("README.md")) == []


def test_list_for_assistants_has_every_page_with_its_address() -> None:
    text = llms_text("About it.")
    assert text.startswith("# FedGMR\n\n> About it.\n\n## Start\n\n- [What it is](README.html): ")
    assert "- [Recipes](recipes.html): every setting" in text
    assert "(examples/notebooks/first-steps.html)" in text
    assert "- [FedAvg](methods/fedavg.html): " in text, "pages of a folder begin with what they are about"
    assert text.count("\n- [") == len(listed()) - 1, "all but the front page"
    assert [line for line in text.splitlines() if line.startswith("- ") and line[-1] != "."] == []


def test_code_is_no_link_and_no_heading() -> None:
    code = "`[n](o.md)`\n\n```sh\n# no heading\n[n](o.md)\n```\n\n    [n](o.md)\n"
    text = f"# A `b` (c)\n\n[x](y.md#z) {code}\n## A `b` (c)\n"
    found = list(links_of(PurePosixPath("docs/a.md"), text))
    assert [(str(link.target), link.anchor) for link in found] == [("docs/y.md", "z")]
    assert [text[slice(*link.span)] for link in found] == ["y.md#z"]
    assert headings_of(text) == ["A `b` (c)", "A `b` (c)"]
    assert anchors_of(text) == {"a-b-c", "a-b-c-1"}
    assert len(without_code(text)) == len(text)


def test_links_to_other_sites_are_left_alone() -> None:
    assert list(links_of(PurePosixPath("a.md"), "[x](https://flower.ai) [y](mailto:a@b.c)")) == []
