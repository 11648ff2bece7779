"""Tables in all their forms, character by character."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedgmr.paper.rendering import table_text, write_table
from fedgmr.paper.tables import Block, Cell, Measure, Table

CELLS = {
    ("FedGMR", "A"): Cell(
        ours=Measure(mean=81.204, std=0.3, seeds=2, seeds_std=0.45), paper=Measure(mean=81.68, std=0.28), stand_in=True
    ),
    ("FedAvg", "A"): Cell(paper=Measure(mean=68.46, std=0.66)),
    ("FedGMR", "B"): Cell(ours=Measure(mean=50.0)),
}
BLOCK = Block(title="High", cells=CELLS)


@pytest.fixture
def table() -> Table:
    return Table(name="baselines", title="Methods & all", about="About.", blocks=(BLOCK,), notes=("a note",))


def written(table: Table, folder: Path, kind: str) -> str:
    write_table(table, folder)
    return (folder / f"table.{kind}").read_text()


def test_text(table: Table) -> None:
    assert table_text(table).splitlines() == [
        "Methods & all",
        "About.",
        "",
        "High",
        "setting  method" + 29 * " " + "ours         paper  difference",
        "-" * 74,
        "A        FedGMR  81.20 ± 0.30 (2 seeds: ± 0.45)†  81.68 ± 0.28       -0.48",
        "         FedAvg" + 26 * " " + "missing  68.46 ± 0.66           -",
        "B        FedGMR" + 28 * " " + "50.00             -           -",
        "",
        "note: a note",
    ]


def test_short_tables_say_so_in_every_form(table: Table, tmp_path: Path) -> None:
    short = Table(**{**table.__dict__, "short": True, "comparable": False})
    texts = [(table_text(short), table_text(table))]
    texts += [(written(short, tmp_path, kind), written(table, tmp_path, kind)) for kind in ("md", "tex", "html")]
    for marked, plain in texts:
        assert "ours (short)" in marked
        assert "not comparable" in marked
        assert "short" not in plain
    assert [row["short"] for row in csv.DictReader(io.StringIO(written(short, tmp_path, "csv")))] == ["1", "1", "1"]


def test_markdown(table: Table, tmp_path: Path) -> None:
    text = written(table, tmp_path, "md")
    assert "| A | FedGMR | 81.20 ± 0.30 (2 seeds: ± 0.45)† | 81.68 ± 0.28 | -0.48 |" in text
    assert text.startswith("# Methods & all\n\nAbout.\n\n## High\n")


def test_csv_has_whole_numbers(table: Table, tmp_path: Path) -> None:
    first, second, third = csv.DictReader(io.StringIO(written(table, tmp_path, "csv")))
    assert (first["ours"], first["seeds_std"], first["stand_in"]) == ("81.204", "0.45", "1")
    assert float(first["difference"]) == pytest.approx(-0.476)
    assert float(first["difference_percent"]) == pytest.approx(-0.58276, abs=1e-4)
    assert (second["ours"], second["status"], second["paper"]) == ("", "missing", "68.46")
    assert (third["paper"], third["difference"]) == ("", "")


def test_latex(table: Table, tmp_path: Path) -> None:
    text = written(replace(table, title=r"Methods & {a_b} 50 %"), tmp_path, "tex")
    assert r"\caption{Methods \& \{a\_b\} 50 \%. High.}" in text
    assert r"FedGMR & ours & $81.20 \pm 0.45$$^\dagger$ & $50.00$ \\" in text
    assert r" & paper & $81.68 \pm 0.28$ & -- \\" in text
    assert r" & difference & -0.48 & - \\" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\bottomrule") == 1


VIEWED = Cell(
    ours=Measure(mean=67.8, std=0.7),
    best=Measure(mean=77.3, std=0.2),
    best_view="padded",
    larger=Measure(mean=77.4, std=0.3),
    paper=Measure(mean=75.64, std=0.25),
    stand_in=True,
)


def test_views_have_columns_of_their_own(table: Table, tmp_path: Path) -> None:
    block = Block(title="High", cells={("HeteroFL", "A"): VIEWED, ("FedAvg", "A"): CELLS["FedAvg", "A"]})
    viewed = replace(table, blocks=(block,))
    larger = "larger of merged and padded on the test set"
    assert list(viewed.headers.values()) == [
        "ours, merged model",
        "best view by validation",
        larger,
        "paper",
        "difference",
    ]
    lines = written(viewed, tmp_path, "md").splitlines()
    assert "| A | HeteroFL | 67.80 ± 0.70† | 77.30 ± 0.20† padded | 77.40 ± 0.30† | 75.64 ± 0.25 | +1.76 |" in lines
    assert "|  | FedAvg | missing | - | - | 68.46 ± 0.66 | - |" in lines
    text = table_text(viewed)
    assert larger in text
    assert "77.30 ± 0.20† padded" in text
    first, second = csv.DictReader(io.StringIO(written(viewed, tmp_path, "csv")))
    assert [first[name] for name in ("ours", "best", "best_view", "larger", "larger_std")] == [
        *("67.8", "77.3", "padded", "77.4", "0.3")
    ]
    assert float(first["difference"]) == pytest.approx(1.76)
    assert (second["best"], second["best_view"], second["larger"]) == ("", "", "")
    latex = written(viewed, tmp_path, "tex")
    assert r" & best view by validation & $77.30 \pm 0.20$$^\dagger$ padded \\" in latex
    assert rf" & {larger} & $77.40 \pm 0.30$$^\dagger$ \\" in latex
    page = written(viewed, tmp_path, "html")
    assert page.count("<table") == 5
    assert "77.30 ± 0.20† padded</td>" in page


def test_relative_differences() -> None:
    block = Block(title="", cells={}, relative=True, digits=0)
    assert block.difference_text(Cell(ours=Measure(mean=8373), paper=Measure(mean=8375))) == "-0.02 %"
    assert block.difference_text(Cell(ours=Measure(mean=1), paper=Measure(mean=0))) == "-"
    assert block.measure_text(Measure(mean=11779.6)) == "11,780"


def test_page_is_whole_and_coloured(table: Table, tmp_path: Path) -> None:
    page = write_table(table, tmp_path / "out").read_text()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"table.{e}" for e in ("csv", "html", "md", "tex")
    ]
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert page.count("<table") == 3  # ours, the paper's, the difference
    # Ours is the lowest of column A but for FedAvg's number, the paper's the highest.
    assert 'background:rgb(66,146,198)">81.68' in page
    assert re.search(r'background:rgb\(\d+,\d+,\d+\)">-0.48', page)
    assert '<td class="none">missing</td>' in page
    assert "a note" in page


def test_colours_point_the_right_way(tmp_path: Path) -> None:
    better = Cell(ours=Measure(mean=90.0), paper=Measure(mean=70.0))
    worse = Cell(ours=Measure(mean=50.0), paper=Measure(mean=70.0))
    cells = {("up", "c"): better, ("down", "c"): worse}
    block = Block(title="", cells=cells)
    page = write_table(Table(name="n", title="t", about="a", blocks=(block,)), tmp_path).read_text()
    blue = re.search(r'rgb\((\d+),\d+,(\d+)\)">\+20.00', page)
    orange = re.search(r'rgb\((\d+),\d+,(\d+)\)">-20.00', page)
    assert blue is not None
    assert orange is not None
    assert int(blue[1]) < int(blue[2])
    assert int(orange[1]) > int(orange[2])
