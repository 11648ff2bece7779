"""The verb trace: what it writes and prints, and what it refuses in one sentence."""

import sys
from pathlib import Path
from typing import Any

import pytest

import fedgmr
from fedgmr.cli.main import main


def test_made_shown_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made, again, figure = tmp_path / "lte.csv", tmp_path / "again.csv", tmp_path / "lte.png"
    for path in (made, again):
        assert main(["trace", "make", "drive", "--seconds", "300", "--seed", "1", "--output", str(path)]) == 0
    assert made.read_bytes() == again.read_bytes(), "the seed decides"
    assert capsys.readouterr().out == f"Trace: {made}\nTrace: {again}\n"
    assert main(["trace", "make", "drive", "--seconds", "300", "--seed", "1"]) == 0
    assert capsys.readouterr().out == made.read_text(), "the same on the standard output"

    assert main(["trace", "show", str(made)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[2:4]] == ["down", "up"]
    assert all("300 s" in line for line in lines[2:4])

    pytest.importorskip("matplotlib")
    assert main(["trace", "show", str(made), "--figure", str(figure)]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.endswith(f"Figure: {figure}\n")


def test_numbers_of_files_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Seconds of 4, 0, 0, 8 and 8 Mbit/s; and Mahimahi: 100 packets of 12,000 bits are 1.2 Mbit/s, one is 0.012."""
    table, packets = tmp_path / "a.csv", tmp_path / "b.pps"
    table.write_text("seconds,rate\n0,4\n1,0\n3,8\n4,8\n")
    packets.write_text("".join(f"{10 * n}\n" for n in range(1, 101)) + "2000\n")
    assert main(["trace", "show", str(table), str(packets), "--unit", "Mbit/s"]) == 2, "packets have no unit"
    assert "unit is Mbit/s" in capsys.readouterr().err
    assert main(["trace", "show", str(table), "--unit", "Mbit/s"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[-9:] == ["5", "s", "4", "4", "0", "2", "s", "2", "s"]
    assert main(["trace", "show", str(packets)]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[-9:] == [
        "2",
        "s",
        "0.606",
        "0.606",
        "0.0714",
        "0",
        "s",
        "0",
        "s",
    ]


def test_the_strips_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    settings: dict[str, Any] = {"seconds": 200.0, "training": {"steps": 2}, "evaluation": {"every_seconds": 100.0}}
    for name in ("lte", "high"):
        fleet = {"name": name, "clients": 5, "scale": "model"}
        fedgmr.simulate("e2e.tiny:dense", fleet=fleet, output=tmp_path / name, **settings)
    capsys.readouterr()
    assert main(["trace", str(tmp_path / "lte"), "--figure", str(tmp_path / "strips.png")]) == 0
    assert (tmp_path / "strips.png").read_bytes().startswith(b"\x89PNG")
    assert main(["trace", str(tmp_path / "high"), "--figure", str(tmp_path / "none.png")]) == 2
    assert "records no trips" in capsys.readouterr().err
    assert not (tmp_path / "none.png").exists()


def test_a_figure_without_matplotlib(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    (tmp_path / "a.csv").write_text("seconds,rate Mbit/s\n0,1\n1,2\n")
    assert main(["trace", "show", str(tmp_path / "a.csv"), "--figure", str(tmp_path / "a.png")]) == 2
    assert "--figure needs the package matplotlib, which is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["make"], "trace make needs one kind of trace: give drive or commute."),
        (["make", "drive", "commute"], "trace make needs one kind"),
        (["make", "flight"], "'flight' is not a kind of trace that can be made"),
        (["make", "drive", "--seconds", "0"], "--seconds is 0: give a number from 1"),
        (["make", "drive", "--seed", "-1"], "--seed is -1: give a number from 0 on."),
        (["make", "drive", "--output", "no/such/folder/lte.csv"], "No such file or directory."),
        (["show"], "trace show needs trace files"),
        (["show", "absent.csv"], "no such file"),
        (["show", "."], "which is no file"),
        (["show", "bad.csv"], "bad.csv, line 3: "),
        (["show", "good.csv", "--figure", "rates.jpg"], "ends with .png or .pdf"),
        (["absent"], "trace absent draws a run: give one directory and --figure FILE"),
        (["absent", "other", "--figure", "f.png"], "trace absent draws a run"),
        (["absent", "--figure", "f.png"], "absent is not a run directory"),
    ],
)
def test_refusals(
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "rates.jpg" in words:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("seconds,down Mbit/s\n0,1\n1,-1\n")
    Path("good.csv").write_text("seconds,down Mbit/s\n0,1\n1,2\n")
    assert main(["trace", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedgmr: ")
    assert sentence in line
