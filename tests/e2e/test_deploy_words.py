"""`fedgmr deploy` before anything is started: what it refuses, and what it writes."""

import importlib.util
import json
from pathlib import Path

import pytest

from e2e.command import Command, write_recipe
from e2e.recipes import recipe


@pytest.fixture
def quick(fedgmr: Command) -> Command:
    write_recipe(fedgmr.folder / "r.json", recipe("dense", seconds=20.0))
    return fedgmr


def test_where_is_asked_for(quick: Command) -> None:
    assert quick("deploy").refusal() == "deploy needs to know where: give local, init, or --resume RUN."


def test_numbers_of_clients(quick: Command) -> None:
    assert quick("deploy", "local", "r.json", "--clients", "0").refusal() == "--clients is 0: give at least 1."


@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs the extra")
def test_a_file_is_no_run_directory(quick: Command) -> None:
    said = quick("deploy", "local", "r.json", "--clients", "1", "output=r.json")
    assert said.refusal() == "output is 'r.json', which is a file: give a directory."


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="the extra is installed")
def test_missing_extra(quick: Command) -> None:
    said = quick("deploy", "local", "r.json", "--output", "run").refusal()
    assert said.endswith("which deployments need: pip install 'flwr>=1.41,<1.43'.")
    assert not (quick.folder / "run").exists()


def test_resume_of_what_was_not_deployed(quick: Command) -> None:
    assert "is not a run directory" in quick("deploy", "--resume", "nowhere").refusal()
    assert quick("run", "r.json", "output=run").code == 0
    assert "is finished: there is nothing to resume" in quick("deploy", "--resume", "run").refusal()
    (quick.folder / "run" / "summary.json").unlink()
    said = quick("deploy", "--resume", "run").refusal()
    assert "is no run of `fedgmr deploy local`" in said
    assert "flwr run APP CONNECTION -c resume=true" in said


def test_init_writes_a_folder_once(quick: Command) -> None:
    done = quick("deploy", "init", "fleet", "r.json", "seed=5")
    assert (done.code, done.err) == (0, "")
    assert done.out == "Flower app: fleet. Its README.md has the commands for server and nodes.\n"
    assert (quick.folder / "fleet" / "systemd" / "fedgmr-supernode.service").is_file()
    assert "not empty: give a new folder" in quick("deploy", "init", "fleet", "r.json").refusal()
    assert "output is not a setting of deploy init" in quick("deploy", "init", "g", "r.json", "output=x").refusal()

    shown = quick("show", "fleet/recipe.yaml", "--json")
    written = json.loads(shown.out)
    assert (written["seed"], written["checkpoint"]["every"]) == (5, 1)
    assert written["deployment"]["identity"] == "node"
    # The written recipe is paced already; what it says is what runs.
    assert written["evaluation"]["every_seconds"] == written["method"]["coordination"]["period"] > 5.5
    assert Path(quick.folder / "fleet" / "pyproject.toml").read_text().count("fedgmr.flower") == 2
