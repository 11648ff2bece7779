"""What can be known before the work is said before it, from the command line and from Python alike."""

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from e2e import tiny
from e2e.recipes import recipe

from experiments.sweep.runs import small
from fedgmr import Link, simulate
from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.main import main
from fedgmr.experiments.run import run_recipe
from fedgmr.recipe import recipe_from

LINK: dict[str, Any] = {"down": 20, "up": 5}


@pytest.mark.parametrize(
    "rates", [{"down": 0, "up": 1}, {"down": 1, "up": -2.0}, {"down": math.nan, "up": 1}, {"down": "a", "up": 1}]
)
def test_links_have_rates(rates: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(down|up) is .*: give a rate above 0"):
        Link(**rates)


def test_sizes_that_leave_an_update_no_bytes(tmp_path: Path) -> None:
    """One of 16 channels keeps 9 + 36 weights and 7 others, 52 in all; of those others the whole model has 52."""
    data = recipe("normed", "heterofl", network={"sizes": "paper"}, seconds=40.0)
    with pytest.raises(
        ValueError, match=r"network\.sizes is paper, .* of density 0\.05 has 0 bytes .* of 772 .*: give wire"
    ):
        run_recipe(recipe_from(data), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run_recipe(recipe_from({**data, "method": "fedgmr"}), None)
    data["network"] = {"sizes": "linear", "full_size": 8 / 2**20}
    with pytest.raises(ValueError, match=r"network\.sizes is linear, .* has 0 bytes"):
        run_recipe(recipe_from(data), None)


def test_a_fleet_as_plain_data() -> None:
    runs = [
        simulate(tiny.dense(), fleet=fleet, seconds=30.0, network={"noise": 0.0})
        for fleet in ([Link(down=20.0, up=5.0)], [LINK], {"name": "custom", "links": [LINK]})
    ]
    assert [run.recipe for run in runs[1:]] == [runs[0].recipe] * 2
    with pytest.raises(ValueError, match=r"fleet.links.0: up is missing"):
        simulate(tiny.dense(), fleet=[{"down": 20}], seconds=30.0)
    with pytest.raises(ValueError, match=r"fleet is 5"):
        simulate(tiny.dense(), fleet=5, seconds=30.0)  # type: ignore[arg-type]


def test_a_batch_larger_than_any_clients_data() -> None:
    # 240 samples less 24 held out, 216 for five clients: 44 at most.
    with pytest.warns(UserWarning, match="batch_size is 45 and no client has more than 44 samples"):
        run_recipe(small("fedgmr", "training.batch_size=45", "seconds=20"), None)
    with warnings.catch_warnings(action="error"):
        run_recipe(small("fedgmr", "training.batch_size=44", "seconds=20"), None)


def test_a_run_that_merges_nothing_says_so() -> None:
    with pytest.warns(UserWarning, match="no update was merged in 0.001 seconds"):
        run_recipe(small("fedgmr", "seconds=0.001"), None)
    absent = {**recipe("dense")["fleet"], "absences": [{"clients": [0, 1, 2, 3, 4], "start": 0.0, "end": 1e6}]}
    for method in ("fedavg", "fedgmr"):  # one waits for ever, the ticks of the other go by
        with pytest.warns(UserWarning, match="no update was merged in 120 seconds"):
            run_recipe(small(method, fleet=absent), None)


def test_a_target_in_percent_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.json").write_text(json.dumps(recipe("dense")))
    assert main(["compare", "r.json", "--target", "95", "output=out"]) == 2
    assert "--target is 95: give the accuracy as a fraction" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_name_stays_below_runs() -> None:
    directory = RecipeWords.read([]).directory("../../evil")
    assert directory.parent == Path("runs")
    assert directory.name.startswith("......evil-")


def test_a_report_can_be_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_recipe(small(), tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"Report: {tmp_path / 'run' / 'report.html'}\n"
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep(given: str | None, found: str) -> None:
    """The variable is there when torch is looked for, and one that the user sets stays."""
    code = """
import os, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"))
            raise SystemExit
sys.meta_path.insert(0, Watch())
from fedgmr import simulate
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == f"{found}\n"
