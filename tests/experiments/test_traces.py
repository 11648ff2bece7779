"""Traces made, described and drawn: numbers computed by hand."""

from pathlib import Path

import numpy as np
import pytest

from fedgmr.experiments.traces import (
    IN_ASCII,
    KINDS,
    MBIT,
    describe,
    description_table,
    draw_traces,
    make_trace,
    stretches,
)
from fedgmr.fleets.curves import Curve
from fedgmr.fleets.drive import drive_rates

CURVE = Curve(starts=[0, 2, 5], rates=[1, 0, 3], end=10)  # MiB/s: 1 1 0 0 0 3 3 3 3 3


def test_a_description_by_hand() -> None:
    told = describe(CURVE)
    assert (told.seconds, told.silent, told.longest_silence) == (10, 3, 3)
    assert (told.mean, told.median, told.fifth) == pytest.approx((1.7 * MBIT, 2 * MBIT, 0))
    assert pytest.approx(8.388608) == MBIT
    assert told.line == "▃▃   █████"  # a third of the highest is the third of eight blocks
    assert told.line.translate(IN_ASCII) == "--   @@@@@"


def test_finer_traces_are_described_by_the_second() -> None:
    """Half seconds of 2 and 0 MiB/s are seconds of 1, and nothing is silent; the last half second is left out."""
    told = describe(Curve(starts=[0, 0.5, 1, 1.5, 2], rates=[2, 0, 2, 0, 9], end=2.5))
    assert (told.mean, told.fifth, told.silent) == pytest.approx((MBIT, MBIT, 0))
    assert describe(Curve(starts=[0], rates=[3], end=0.25)).mean == pytest.approx(3 * MBIT)


def test_very_long_traces_are_described_by_longer_stretches() -> None:
    rates, width = stretches(Curve(starts=[0, 1e9], rates=[1, 0], end=2e9), 4)
    assert width == 5e8
    assert rates == pytest.approx(np.array([1, 1, 0, 0]) * MBIT)


def test_silences_add_up_and_the_longest_counts() -> None:
    told = describe(Curve(starts=[0, 1, 3, 4, 8], rates=[0, 1, 0, 1, 0], end=11))
    assert (told.silent, told.longest_silence) == (5, 3)
    nothing = describe(Curve(starts=[0], rates=[0], end=4))
    assert (nothing.silent, nothing.mean, nothing.line) == (4, 0, "    ")


def test_the_table() -> None:
    lines = description_table({"a.csv": [("down", CURVE), ("up", CURVE.scaled(0.1))]})
    assert lines[2].split()[:2] == ["a.csv", "down"]
    assert lines[2].split()[-8:] == ["10", "s", "14.3", "16.8", "0", "3", "s", "3", "s"][-8:]
    assert "1.43" in lines[3]


def test_a_made_trace_has_the_drawn_rates() -> None:
    header, *rows = make_trace("drive", seconds=30, seed=4).splitlines()
    assert header == "seconds,down Mbit/s,up Mbit/s"
    down, up = drive_rates(30, seed=4)
    found = np.array([row.split(",") for row in rows], dtype=float)
    assert found[:, 0].tolist() == list(range(30))
    assert found[:, 1:] == pytest.approx(np.stack([down, up], axis=1) * MBIT, rel=1e-4)
    assert len(make_trace("commute", seconds=30, seed=4).splitlines()) == 1 + 30 + KINDS["commute"]


@pytest.mark.parametrize(
    ("kind", "seconds", "seed", "sentence"),
    [("flight", 30, 0, "'flight' is not a kind"), ("drive", 0, 0, "--seconds is 0"), ("drive", 9, -1, "--seed is -1")],
)
def test_traces_that_cannot_be_made(kind: str, seconds: int, seed: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_trace(kind, seconds=seconds, seed=seed)


def test_a_figure_of_traces(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    traces = {"a.csv": [("down", CURVE), ("up", CURVE.scaled(0.1))]}
    draw_traces(traces, tmp_path / "rates.png")
    draw_traces(traces, tmp_path / "rates.pdf")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "rates.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ValueError, match=r"ends with \.png or \.pdf"):
        draw_traces(traces, tmp_path / "rates.jpg")
