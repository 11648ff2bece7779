"""The strips of a run: what each client did when, and how fast its link carried it."""

from pathlib import Path

import pytest

from fedgmr.reporting.records import read_run
from fedgmr.reporting.strips import draw_strips, rate_lines, strips_figure, time_pieces
from reporting.conftest import evaluation, write_run

MIB = 2**20
ROWS = [
    evaluation(0.0, 0.1, trips=[], away=[]),
    evaluation(
        20.0,
        0.5,
        trips=[
            [0, 4, 0.0, 4.0, 5.0, 7.0, 8 * MIB, 8 * MIB],
            [0, 4, 8.0, None, None, 9.5, 8 * MIB, None],
            [1, 3, 0.0, 0.0, 18.0, 22.0, MIB, MIB],
        ],
        away=[[0, 9.5, 15.0]],
    ),
]


def test_pieces_by_hand() -> None:
    assert time_pieces(ROWS, 20.0) == {
        "receiving": {0: [(0.0, 4.0)]},
        "training": {0: [(4.0, 5.0)], 1: [(0.0, 18.0)]},
        "sending": {0: [(5.0, 7.0)], 1: [(18.0, 20.0)]},
        "lost": {0: [(8.0, 9.5)]},
        "away": {0: [(9.5, 15.0)]},
    }
    assert rate_lines(ROWS) == {0: ([(0.0, 4.0, 2.0)], [(5.0, 7.0, 4.0)]), 1: ([], [(18.0, 22.0, 0.25)])}
    varying = [ROWS[0], {**ROWS[1], "rates": [[[1.0, 3.0], [0.5, 0.0]], [[2.0, 2.0], [1.0, 1.0]]]}]
    assert rate_lines(varying) == {
        0: ([(0.0, 10.0, 1.0), (10.0, 20.0, 3.0)], [(0.0, 10.0, 0.5), (10.0, 20.0, 0.0)]),
        1: ([(0.0, 10.0, 2.0), (10.0, 20.0, 2.0)], [(0.0, 10.0, 1.0), (10.0, 20.0, 1.0)]),
    }


def test_a_figure_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = write_run(tmp_path / "run", ROWS, None)
    draw_strips(run, tmp_path / "strips.png")
    assert (tmp_path / "strips.png").read_bytes().startswith(b"\x89PNG")
    (legend,) = strips_figure(read_run(run)).figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        *("rate down (top: 4 MiB/s, root scale)", "rate up", "receiving", "training", "sending", "lost", "away")
    ]
    with pytest.raises(ValueError, match=r"give a name that ends with \.png or \.pdf"):
        draw_strips(run, tmp_path / "strips.jpg")


def test_runs_that_cannot_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plain = write_run(tmp_path / "plain", [evaluation(0.0, 0.1)], None)
    with pytest.raises(ValueError, match=r"records no trips: run its recipe with evaluation\.trips=true"):
        draw_strips(plain, tmp_path / "strips.png")
    odd = write_run(tmp_path / "odd", [evaluation(0.0, 0.1, trips=[[1, 2]], away=[])], None)
    with pytest.raises(ValueError, match="the trips of an evaluation cannot be understood"):
        draw_strips(odd, tmp_path / "strips.png")
