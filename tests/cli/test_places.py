"""Directories and options that a command cannot use are refused before it does half of what was asked."""

import sys
from pathlib import Path
from typing import Any

import pytest
from reporting.conftest import write_curve

from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.main import main
from fedgmr.experiments.estimate import Estimate

SHORT = ("quickstart", "seconds=20", "short=true")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, `run` in the working directory, beside an empty folder."""
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    return write_curve(tmp_path / "run", {0.0: 0.1, 200.0: 0.8})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["verify", "run", "empty", "absent"], "There are no runs below empty, absent: give run directories."),
        (
            ["report", "run", "absent", "--output", "page.html"],
            "There are no runs below absent: give run directories, or one with runs below it.",
        ),
        (
            ["run", *SHORT, "output=a\udcff/b"],
            r"output is 'a\udcff/b', whose name is not UTF-8: rename it or give another.",
        ),
        (["compare", *SHORT, "output=run"], "output is 'run', which is itself a run: give another directory."),
        (["sweep", *SHORT, "--store", "run"], "--store is 'run', which is itself a run: give another directory."),
        (
            ["sweep", *SHORT, "--also", "run", "--also", "absent"],
            "--also is 'absent', which is no directory: give one ",
        ),
        (
            ["model", "run", "--level", "0.2"],
            "--level is 0.2 without --to: give a format, state_dict or safetensors or onnx or torch.export.",
        ),
        (["model", "run", "--output", "m.pt"], "--output is 'm.pt' without --to: give a format, state_dict or "),
    ],
)
def test_one_sentence_and_nothing_is_written(
    words: list[str], sentence: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(run.parent.rglob("*"))
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"fedgmr: {sentence}")
    assert sorted(run.parent.rglob("*")) == before


@pytest.mark.parametrize(("verb", "missing"), [(["resume"], "RUN"), (["deploy", "init"], "DIR")])
def test_only_what_is_required_is_asked_for(verb: list[str], missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(verb)
    assert capsys.readouterr().err.endswith(f"the following arguments are required: {missing}\n")


def test_a_resume_is_not_told_how_to_be_shorter(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recipe cannot change: neither fewer seconds nor `short` would be taken."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "fedgmr.cli.duration.estimate_runs", lambda *_, **__: Estimate(seconds={"run": 1500.0}, timed=True)
    )
    monkeypatch.setattr("fedgmr.cli.runs.read_recipe", lambda _: RecipeWords.read(SHORT).load())
    monkeypatch.setattr("fedgmr.cli.runs.budget", lambda *_: 20.0)
    monkeypatch.setattr("fedgmr.cli.runs.resume_run", interrupted)
    assert main(["resume", "run"]) == 130
    assert capsys.readouterr().err.splitlines()[0] == "fedgmr: this takes about 25 min on this machine."


def test_words_of_a_list_stand_on_either_side_of_an_option(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["trace", "make", "--seconds", "30", "drive", "--output", "lte.csv"]) == 0
    assert main(["trace", "show", "--unit", "MiB/s", "lte.csv"]) == 0
    assert main(["verify", "run", "--trust", "e2e", "absent"]) == 2
    assert "There are no runs below absent" in capsys.readouterr().err
    assert main(["report", "run", "--output", "page.html", "empty"]) == 2
    assert "There are no runs below empty" in capsys.readouterr().err
    given: list[object] = []
    monkeypatch.setattr("fedgmr.cli.runs._resume", lambda words: given.append(words.changes))
    assert main(["resume", "run", "--trust", "e2e", "seconds=700"]) == 0
    assert given == [["seconds=700"]]
    with pytest.raises(SystemExit, match="2"):
        main(["resume", "run", "--unknown", "seconds=700"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --unknown seconds=700\n")


def test_a_working_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["show", "quickstart"]) == 2
    assert capsys.readouterr().err == "fedgmr: The working directory is no longer there: change to one that is.\n"


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # of the locale C
def test_output_that_lacks_letters_or_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: str) -> None:
    file = (tmp_path / "out").open("w", encoding="ascii", errors=errors)
    monkeypatch.setattr(sys, "stdout", file)
    assert main(["show", "quickstart", "name=ü±"]) == 0
    assert r"name: \xfc\xb1" in (tmp_path / "out").read_text()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["show", "quickstart"]) == 0


def test_the_home_directory_in_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every shell puts it in behind the sign."""
    monkeypatch.setenv("HOME", "/home/me")
    assert RecipeWords.read(["output=~/runs/a"]).output == Path("/home/me/runs/a")
    assert RecipeWords.read(["output=a~/b"]).output == Path("a~/b")
