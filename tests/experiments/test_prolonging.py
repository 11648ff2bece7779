"""A prolonged run is the uninterrupted longer one, bit for bit, or is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from e2e import tiny
from e2e.recipes import FLEET, RECIPES, recipe

import fedgmr
from fedgmr.experiments import prolonging
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.seal import verify_run
from fedgmr.recipe import recipe_from

_CLOCK = ("wall", "wall_seconds", "digest")
_FILES = ("recipe.yaml", "model.safetensors", "views.safetensors")


def left(run: Path) -> dict[str, Any]:
    """All that a run leaves but for the host's clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    whole = [*(run / name for name in _FILES), *run.glob("checkpoints/*")]
    return {
        "rows": [{name: value for name, value in row.items() if name not in _CLOCK} for row in rows],
        "summary": {name: value for name, value in summary.items() if name not in _CLOCK},
        **{path.name: path.read_bytes() for path in whole if path.exists()},
    }


def longer_than(seconds: float, data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "seconds": seconds}


CASES = {
    # A row every tick or so, so that the last ten of the short run test more views than the long one does there.
    "fedgmr": recipe("dropped", evaluation={"every_seconds": 10.0, "padded_every": 3, "levels_every": 7}),
    # The last tick of the short run is at its end, so a checkpoint knows of its last row.
    "exact": recipe(
        method={"name": "fedgmr", "coordination": {"period": 20.0}},
        evaluation={"every_seconds": 20.0, "levels_every": 4, "clients": 4},
    ),
    "fedasync": RECIPES["fedasync"],
    "cohort": RECIPES["cohort"],
    "heterofl": recipe("normed", "heterofl"),
    # The short run ends while nobody is there.
    "away": recipe(
        method="fedavg",
        fleet={**FLEET, "absences": [{"clients": [0, 1, 2, 3, 4], "start": 210.0, "end": 360.0}]},
    ),
}


@pytest.mark.parametrize(("name", "every"), [*((name, 1) for name in CASES), ("fedgmr", 7), ("fedgmr", 1000)])
def test_a_prolonged_run_is_the_longer_one(name: str, every: int, tmp_path: Path) -> None:
    data = CASES[name] | {"checkpoint": {"every": every, "keep": 2}}
    run_recipe(recipe_from(longer_than(300.0, data)), tmp_path / "run")
    short = left(tmp_path / "run")
    assert any(name.startswith("tick") for name in short) == (every < 1000)
    run_recipe(recipe_from(longer_than(450.0, data)), tmp_path / "long")
    prolonged = resume_run(tmp_path / "run", seconds=450.0, trust=["e2e"])
    assert left(tmp_path / "run") == left(tmp_path / "long")
    assert verify_run(tmp_path / "run") == verify_run(tmp_path / "long")
    assert prolonged.history[-1]["seconds"] == prolonged.recipe.seconds == 450.0
    if name == "exact":
        assert short["rows"][-1]["seconds"] == 300.0
        assert "clients" in short["rows"][-1]
        assert "clients" not in left(tmp_path / "long")["rows"][len(short["rows"]) - 1]
    if name == "fedgmr":
        rows = left(tmp_path / "long")["rows"]
        assert short["rows"][-3]["views"].keys() > rows[len(short["rows"]) - 3].get("views", {}).keys()


def test_the_command_prolongs_and_twice_is_as_once(tmp_path: Path) -> None:
    from fedgmr.cli.main import main

    data = recipe(checkpoint={"every": 3})
    for seconds in (100.0, 260.0):
        run_recipe(recipe_from(longer_than(seconds, data)), tmp_path / f"{seconds:g}")
    run = tmp_path / "100"
    for seconds in (180, 260):
        assert main(["resume", str(run), f"seconds={seconds}", "--trust", "e2e"]) == 0
    assert {**left(run), "summary": None} == {**left(tmp_path / "260"), "summary": None}  # which has the command
    with pytest.raises(ValueError, match="is finished"):
        resume_run(run, trust=["e2e"])


@pytest.mark.parametrize(
    ("step", "done"), [("_seal", 0), ("_seal", 1), ("write_atomic", 0), ("write_atomic", 1), ("_bound", 0)]
)
def test_an_interruption_of_the_prolonging_itself_does_no_harm(
    step: str, done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the steps dies; a plain resume gives the run of its recipe, and then the same command the longer one."""
    data = recipe(evaluation={"every_seconds": 10.0}, checkpoint={"every": 2})
    run_recipe(recipe_from(longer_than(100.0, data)), tmp_path / "run")
    run_recipe(recipe_from(longer_than(160.0, data)), tmp_path / "long")
    short, calls, real = left(tmp_path / "run"), iter(range(9)), getattr(prolonging, step)

    def dying(*given: Any) -> Any:
        if next(calls) == done:
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(prolonging, step, dying)
        with pytest.raises(KeyboardInterrupt):
            resume_run(tmp_path / "run", seconds=160.0, trust=["e2e"])
    verify_run(tmp_path / "run")
    longer = (step, done) in (("write_atomic", 1), ("_bound", 0))
    if step != "_seal":  # otherwise it is still finished
        resume_run(tmp_path / "run", trust=["e2e"])
    if not longer:
        assert left(tmp_path / "run")["rows"] == short["rows"]
        resume_run(tmp_path / "run", seconds=160.0, trust=["e2e"])
    assert left(tmp_path / "run") == left(tmp_path / "long")


def test_a_run_with_a_task_object_is_prolonged_from_python(tmp_path: Path) -> None:
    def run(output: str, seconds: float) -> fedgmr.Result:
        return fedgmr.simulate(
            tiny.dense(), fleet=FLEET, seconds=seconds, output=tmp_path / output, checkpoint={"every": 1}
        )

    run("long", 90.0), run("short", 60.0)
    prolonged = fedgmr.resume(tmp_path / "short", seconds=90.0, task=tiny.dense(), progress=False)
    assert left(tmp_path / "short") == left(tmp_path / "long")
    assert prolonged.summary["ticks"] > 3
    with pytest.raises(ValueError, match=r"task.name is 'dense', a Task object that no directory holds: give it again"):
        fedgmr.resume(tmp_path / "short", seconds=120.0)
    with pytest.raises(ValueError, match="task is 'wide', and the run's is 'dense': give that one"):
        fedgmr.resume(tmp_path / "short", seconds=120.0, task=tiny.wide())
    assert left(tmp_path / "short") == left(tmp_path / "long"), "nothing was touched"


@pytest.mark.parametrize("seconds", [100.0, 60, float("inf"), float("nan"), True, "soon"])
def test_a_run_is_not_shortened(seconds: Any, kept: Path) -> None:
    with pytest.raises(fedgmr.SettingError, match=r"seconds is .*, and the run in .* has 100: give more"):
        resume_run(kept, seconds=seconds, trust=["e2e"])
    with pytest.raises(fedgmr.SettingError, match="give more"):
        fedgmr.resume(kept, seconds=seconds, trust=["e2e"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kept") / "run"
    run_recipe(recipe_from(recipe(seconds=100.0)), directory)
    return directory


def test_what_depends_on_the_length_is_refused(tmp_path: Path, kept: Path) -> None:
    by_time = recipe(methods={"fedgmr": {"interval": 3, "restoration": {"kind": "fixed_time"}}}, seconds=60.0)
    run_recipe(recipe_from(by_time), tmp_path / "run")
    before = left(tmp_path / "run")
    with pytest.raises(ValueError, match=r"method.restoration is fixed_time, whose moves depend on the time budget"):
        resume_run(tmp_path / "run", seconds=90.0, trust=["e2e"])
    assert left(tmp_path / "run") == before
    by_time["methods"]["fedgmr"]["restoration"]["seconds"] = 60.0  # its own
    run_recipe(recipe_from(by_time), tmp_path / "own")
    run_recipe(recipe_from(by_time | {"seconds": 90.0}), tmp_path / "long")
    resume_run(tmp_path / "own", seconds=90.0, trust=["e2e"])
    assert left(tmp_path / "own") == left(tmp_path / "long")

    stopping = {"every_seconds": 20.0, "stop": {"patience": 1, "improvement": 1.0}}
    run_recipe(recipe_from(recipe(evaluation=stopping, seconds=100.0)), tmp_path / "stopped")
    with pytest.raises(ValueError, match=r"was ended by evaluation.stop: more seconds change nothing"):
        resume_run(tmp_path / "stopped", seconds=300.0, trust=["e2e"])

    deployed = shutil.copytree(kept, tmp_path / "deployed")
    (deployed / "updates.jsonl").touch()
    with pytest.raises(ValueError, match="is a deployed run: only a simulation can be prolonged"):
        resume_run(deployed, seconds=300.0, trust=["e2e"])

    damaged = shutil.copytree(kept, tmp_path / "damaged")
    for file in (damaged / "checkpoints").iterdir():
        file.write_bytes(b"nothing")
    before = left(damaged)
    with pytest.raises(ValueError, match=r"None of the 2 checkpoints in .* is valid: start the run again"):
        resume_run(damaged, seconds=300.0, trust=["e2e"])
    assert left(damaged) == before, "a finished run keeps what it has"

    changed = shutil.copytree(kept, tmp_path / "changed")
    (changed / "metrics.jsonl").write_text((kept / "metrics.jsonl").read_text().replace("0.", "0.1"))
    with pytest.raises(ValueError, match="does not hold the"):
        resume_run(changed, seconds=300.0, trust=["e2e"])
