"""Long commands: said before they start, asked about at a terminal, and how they would be shorter."""

import argparse
import io
import sys
from pathlib import Path

import pytest

from fedgmr.cli.duration import approve, fewer_seconds, more_jobs
from fedgmr.cli.main import main
from fedgmr.experiments.estimate import Estimate
from fedgmr.recipe import load_recipe

GIVEN = argparse.Namespace(command=("run", "partition={kind: iid}"), yes=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, answer: str = "") -> Terminal:
    """Standard error, with an answer on standard input; called in a test, as pytest sets both before it."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    return screen


@pytest.mark.parametrize("seconds", [None, 1.0, 600.0])
def test_nothing_is_said_of_what_is_short_or_unknown(monkeypatch: pytest.MonkeyPatch, seconds: float | None) -> None:
    terminal = at_terminal(monkeypatch)
    approve(seconds, ["--short"], GIVEN)
    assert terminal.getvalue() == ""


def test_minutes_are_said_and_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    approve(1500.0, ["--short", "--jobs 4"], GIVEN)
    assert terminal.getvalue() == "fedgmr: this takes about 25 min on this machine. Shorter: --short; --jobs 4.\n"


@pytest.mark.parametrize(
    ("answer", "starts"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_hours_are_asked_about(monkeypatch: pytest.MonkeyPatch, answer: str, starts: bool) -> None:
    terminal = at_terminal(monkeypatch, answer)
    if starts:
        approve(10_000.0, ["--short"], GIVEN)
    else:
        with pytest.raises(KeyboardInterrupt) as ended:
            approve(10_000.0, ["--short"], GIVEN)
        again = "`fedgmr run 'partition={kind: iid}' --yes`"
        assert str(ended.value) == f"not started; {again} starts it without asking."
    assert terminal.getvalue().endswith("about 2.8 h on this machine. Shorter: --short.\nStart it? [y/N] ")


def test_hours_go_on_with_the_warning_where_nobody_can_answer_or_yes_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = at_terminal(monkeypatch)
    approve(10_000.0, ["--short"], argparse.Namespace(command=(), yes=True))
    assert "Start it?" not in terminal.getvalue()
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    approve(10_000.0, ["--short"], GIVEN)
    assert terminal.getvalue().count("about 2.8 h") == 2
    assert "Start it?" not in terminal.getvalue()


def test_a_run_that_takes_hours_does_not_start_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = at_terminal(monkeypatch)
    monkeypatch.chdir(tmp_path)
    long = Estimate(seconds={"run": 9e4}, timed=True)
    monkeypatch.setattr("fedgmr.cli.duration.estimate_runs", lambda *_, **__: long)
    assert main(["run", "quickstart", "seconds=20", "output=run"]) == 130
    assert "about 25.0 h" in terminal.getvalue()
    again = "`fedgmr run quickstart seconds=20 output=run --yes`"
    assert terminal.getvalue().endswith(f"fedgmr: not started; {again} starts it without asking.\n")
    assert main(["compare", "quickstart", "seconds=20", "output=both", "--methods", "fedavg"]) == 130
    assert "Shorter: fewer --methods or --seeds; seconds=0.07 short=true" in terminal.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_a_local_fleet_that_takes_hours_does_not_start_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("flwr")
    terminal = at_terminal(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedgmr.deploy.pace.measure_start", lambda clients: 5.0 * clients)
    monkeypatch.setattr("fedgmr.deploy.local.between_nodes", lambda: 1.5)
    words = ["deploy", "local", "quickstart", "seconds=9974", "output=run", "--clients", "4"]
    assert main(words) == 130
    # 4 x 5 s for ClientApps, 4 x 1.5 s for SuperNodes, 9,974 s: 10,000 s; 9,974 x 300 / 10,000 = 299.2
    assert "about 2.8 h on this machine. Shorter: seconds=300 short=true.\nStart it?" in terminal.getvalue()
    again = f"`fedgmr {' '.join(words)} --yes`"
    assert terminal.getvalue().endswith(f"fedgmr: not started; {again} starts it without asking.\n")
    assert list(tmp_path.iterdir()) == []


def test_the_shorter_way_is_some_minutes() -> None:
    recipe = load_recipe("quickstart", ["seconds=80000"])
    assert fewer_seconds(recipe, 36_000.0) == "seconds=700 short=true"  # 80,000 x 300 / 36,000 = 667
    assert fewer_seconds(recipe, None) == "seconds=8000 short=true"
    assert more_jobs(10_000) == []
