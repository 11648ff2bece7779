import base64
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedgmr.reporting import write_report

from .conftest import evaluation, write_realistic, write_run


class PageReader(HTMLParser):
    """Collects what a browser would fetch, the cells of tables and the visible notices."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.notices: list[str] = []
        self.text = ""
        self._into: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        fetching = ("src", "href", "srcset", "data", "poster", "action")
        self.references += [value or "" for name, value in attrs if name in fetching]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._into = "cell"
        if ("class", "notice") in attrs:
            self._into = "notice"

    def handle_endtag(self, tag: str) -> None:
        self._into = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._into == "cell":
            self.rows[-1].append(data)
        if self._into == "notice":
            self.notices.append(data)


def assert_self_contained(page: str) -> None:
    reader = PageReader(page)
    assert reader.references
    assert all(reference.startswith("data:") for reference in reader.references)
    assert not {"script", "iframe", "object", "embed"} & set(reader.tags)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style


def read_page(directory: Path) -> tuple[str, PageReader]:
    path = write_report(directory)
    assert path == directory / "report.html"
    page = path.read_text(encoding="utf-8")
    return page, PageReader(page)


def test_page_refers_to_nothing_outside_itself(study: list[Path]) -> None:
    page, _ = read_page(study[0])
    assert_self_contained(page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_figures_are_embedded_as_saved(study: list[Path]) -> None:
    _, reader = read_page(study[0])
    images = [reference for reference in reader.references if reference.startswith("data:image/png")]
    embedded = [base64.b64decode(image.split(",")[1]) for image in images]
    assert embedded == [(study[0] / f"{name}.png").read_bytes() for name in ("accuracy", "density", "bytes")]


def test_headline_and_facts(tmp_path: Path) -> None:
    lines = [evaluation(0.0, 0.1), evaluation(200.0, 0.8246)]
    directory = write_run(tmp_path / "run", lines, {"final_accuracy": 0.8246, "seed": 17})
    page, reader = read_page(directory)
    assert "<h1>FedGMR on FEMNIST, non-IID</h1>" in page
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert facts == {
        "final accuracy": "82.46 %",
        "fleet": "high",
        "clients": "2",
        "seed": "17",
        "virtual time": "200 s",
        "ticks": "20",
        "clients received": "300.0 MB",
        "clients sent": "60.0 MB",
        "server sent": "240.0 MB",
        "computed in": "4 s",
        "device": "cpu",
    }
    assert reader.notices == []
    assert "torch 2.7.0" in reader.text


def test_table_shows_ten_evaluations_from_first_to_last(study: list[Path]) -> None:
    _, reader = read_page(study[0])
    header, *rows = reader.rows
    assert header == ["time", "tick", "accuracy", "loss", "mean density", "updates", "received", "sent"]
    assert len(rows) == 10
    assert [row[0] for row in rows[:3]] == ["0 s", "285 s", "665 s"]  # the evaluations 0, 3 and 7 of 31
    assert rows[-1][0] == "2,850 s"
    assert rows[-1][4] == "1.00"  # FedGMR has restored everyone by then
    assert rows[0][4] == "0.21"  # (1 + .5 + .2 + .1 + 6 x .05) / 10


def test_recipe_is_shown_as_text_not_as_markup(study: list[Path]) -> None:
    page, reader = read_page(study[0])
    assert "<b>" not in page
    assert "<b>not bold</b> & http://example.org" in reader.text
    assert "details" in reader.tags


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stand_in": "EMNIST ByClass stands in for FEMNIST"}, "EMNIST ByClass stands in for FEMNIST."),
        ({"short": True}, "Short run"),
        ({"status": "diverged"}, "diverged"),
        ({"status": "out-of-memory"}, "out-of-memory"),
    ],
)
def test_doubtful_runs_carry_a_notice(tmp_path: Path, fields: dict[str, object], expected: str) -> None:
    _, reader = read_page(write_realistic(tmp_path, "FedGMR", 0, **fields))
    assert len(reader.notices) == 1
    assert expected in reader.notices[0]


def test_what_the_server_did_about_clients_is_told(tmp_path: Path) -> None:
    events = [
        {"event": "held", "tick": 6, "client": 2, "until": 16},
        {"event": "recovered", "tick": 6, "to": 2, "reason": "collapse", "clients": [0, 2]},
    ]
    page, _ = read_page(write_realistic(tmp_path / "one", "FedGMR", 0, events=events))
    assert "gave client 2 no task before tick 16" in page
    assert "went back to the model of tick 2 (collapse); since then: 0, 2" in page
    page, _ = read_page(write_realistic(tmp_path / "two", "FedGMR", 0, events=[]))
    assert "Distrusted clients" not in page
    with pytest.raises(ValueError, match="'events' is not what it should be"):
        read_page(write_realistic(tmp_path / "three", "FedGMR", 0, events=[5]))


def test_unfinished_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "half-way", [evaluation(0.0, 0.1), evaluation(120.0, 0.4)], None)
    page, reader = read_page(directory)
    assert "<h1>half-way</h1>" in page
    assert "has not finished" in reader.notices[0]
    assert "120 s" in reader.notices[0]
    assert "<dt>accuracy so far</dt><dd>40.00 %</dd>" in page
    assert "<dt>seed</dt>" not in page


def test_diverged_run_with_numbers_that_are_not_numbers(tmp_path: Path) -> None:
    broken = evaluation(50.0, float("nan"), loss=float("nan"))
    _, reader = read_page(write_run(tmp_path / "run", [evaluation(0.0, 0.1), broken], {"status": "diverged"}))
    assert reader.rows[-1][2:4] == ["-", "-"]


def test_page_is_replaced_whole_or_not_at_all(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_report(small_run)
    before = path.read_bytes()
    replace = os.replace

    def refuse_pages(source: Path, target: Path) -> None:
        if Path(target).suffix == ".html":
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_pages)
    with pytest.raises(OSError, match="disk full"):
        write_report(small_run)
    assert path.read_bytes() == before
    assert not [name for name in os.listdir(small_run) if name.endswith(".tmp")]
