"""A run that was killed and resumed leaves the same model, metrics and summary as one that was not."""

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from e2e.command import Command, spawn, write_recipe
from e2e.crash import count_calls, die_after_calls, die_at
from e2e.recipes import RECIPES, recipe
from fedgmr.experiments.rundir import read_recipe
from fedgmr.methods import BUILT_IN

KILLED = -9
MOMENTS = 5  # random ones per recipe
# Moments around the writing of a checkpoint: what happens to it, and the how many-th that is.
WRITES = [
    ("fedgmr", "write", 4),
    ("fedasync", "fsync", 3),
    ("fedgmr", "replace", 2),
    ("fedasync", "replaced", 1),
    ("fedgmr", "unlink", 1),
    ("cohort", "write", 1),  # the first of all
]


def left_by(run: Path) -> tuple[Any, ...]:
    """All that a finished run leaves, checkpoints included, but for the host's clock and the command's words."""
    tensors = {name: (a.dtype, a.shape, a.tobytes()) for name, a in load_file(run / "model.safetensors").items()}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{name: value for name, value in row.items() if name != "wall"} for row in rows]
    summary = json.loads((run / "summary.json").read_text())
    assert summary.pop("wall_seconds") >= 0
    assert len(summary.pop("digest")) == 32  # of the clock and the words, too
    assert summary["versions"].pop("command").startswith(("fedgmr", "__main__.py"))
    assert summary["status"] == "finished"
    # One that died before it could remove the oldest may hold more than it should.
    kept = _checkpoints(run)[-read_recipe(run).checkpoint.keep :]
    return tensors, metrics, summary, {path.name: path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[tuple[Any, ...], int]]:
    """By the name of a recipe: what its run leaves when nothing happens to it, and how many calls it makes."""
    folder, known = tmp_path_factory.mktemp("undisturbed"), dict[str, tuple[tuple[Any, ...], int]]()
    command = Command(folder, tmp_path_factory.mktemp("streams"))

    def find(name: str) -> tuple[tuple[Any, ...], int]:
        if name not in known:
            write_recipe(folder / f"{name}.json", _recipe(name))
            calls = folder / f"{name}.calls"
            ended = command("run", f"{name}.json", f"output={name}", before=partial(count_calls, str(calls)))
            assert ended.code == 0, ended.err
            known[name] = left_by(folder / name), int(calls.read_text())
        return known[name]

    return find


def _recipe(name: str) -> dict[str, Any]:
    """The recipe of that name, or one for the method of that name."""
    if name == "momentum":
        optimizer = {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.001, "keep": True}
        training = {"learning_rate": 0.02, "batch_size": 10, "steps": 2, "optimizer": optimizer}
        return recipe("dropped", training=training, checkpoint={"every": 1, "keep": 100})
    if name == "oort":
        participation = {"count": 3, "policy": {"kind": "oort", "explore": 0.5}}
        return recipe("dropped", participation=participation, checkpoint={"every": 1, "keep": 100})
    seconds = 700.0 if name == "fedavg" else 150.0
    return RECIPES.get(name) or recipe("dropped", name, seconds=seconds, checkpoint={"every": 1, "keep": 100})


def _go_on(fedgmr: Command, name: str) -> None:
    """Resume; start again where the run died before it was one."""
    started = (fedgmr.folder / "run" / "recipe.yaml").exists()
    ended = fedgmr("resume", "run") if started else fedgmr("run", f"{name}.json", "output=run")
    assert ended.code == 0, ended.err
    assert "warning" not in ended.err


def test_the_recipes_see_everything(undisturbed: Callable[[str], Any]) -> None:
    """Otherwise the tests below would show little."""
    rows = {name: undisturbed(name)[0][1] for name in RECIPES}
    for name in ("fedgmr", "cohort"):
        assert sum(rows[name][-1]["level"]) > sum(rows[name][0]["level"])
        assert rows[name][-1]["tick"] >= 12
    assert max(staleness or 0 for staleness in rows["fedasync"][-1]["staleness"]) > 2
    assert max(row["in_flight"] for row in rows["cohort"]) == 3
    assert all(len(recorded) > 3 for recorded in rows.values())


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("name", RECIPES)
def test_killed_at_any_moment(name: str, moment: int, fedgmr: Command, undisturbed: Callable[[str], Any]) -> None:
    expected, calls = undisturbed(name)
    write_recipe(fedgmr.folder / f"{name}.json", RECIPES[name])
    # One in each fifth of the run.
    number = int(calls * (moment + random.Random(f"{name} {moment}").random()) / MOMENTS)
    died = fedgmr("run", f"{name}.json", "output=run", before=partial(die_after_calls, max(1, number)))
    assert died.code == KILLED
    _go_on(fedgmr, name)
    assert left_by(fedgmr.folder / "run") == expected


@pytest.mark.parametrize("moment", range(1, 6))
def test_interrupted_at_any_moment(moment: int, fedgmr: Command, undisturbed: Callable[[str], Any]) -> None:
    """The same with Ctrl-C, which Python turns into an exception wherever it is."""
    expected, calls = undisturbed("fedgmr")
    write_recipe(fedgmr.folder / "fedgmr.json", RECIPES["fedgmr"])
    number = int(calls * (moment + random.Random(moment).random()) / 7)
    stop = partial(die_after_calls, number, signal.SIGINT)
    stopped = fedgmr("run", "fedgmr.json", "output=run", before=stop)
    assert stopped.code == 130
    assert stopped.err.splitlines()[-1].startswith("fedgmr: interrupted")
    assert "Traceback" not in stopped.err
    _go_on(fedgmr, "fedgmr")
    assert left_by(fedgmr.folder / "run") == expected


@pytest.mark.parametrize(("name", "event", "number"), WRITES)
def test_killed_while_writing_a_checkpoint(
    name: str, event: str, number: int, fedgmr: Command, undisturbed: Callable[[str], Any]
) -> None:
    expected, _ = undisturbed(name)
    write_recipe(fedgmr.folder / f"{name}.json", RECIPES[name])
    died = fedgmr("run", f"{name}.json", "output=run", before=partial(die_at, event, "checkpoints", number))
    assert died.code == KILLED
    _go_on(fedgmr, name)
    assert left_by(fedgmr.folder / "run") == expected


@pytest.mark.parametrize(
    ("event", "file"),
    [
        ("replace", "recipe.yaml"),
        ("replaced", "recipe.yaml"),
        ("write", "metrics.jsonl"),
        ("replace", "model.safetensors"),
        ("replaced", "model.safetensors"),
        ("replace", "summary.json"),
    ],
)
def test_killed_while_writing_another_file(
    event: str, file: str, fedgmr: Command, undisturbed: Callable[[str], Any]
) -> None:
    expected, _ = undisturbed("fedgmr")
    write_recipe(fedgmr.folder / "fedgmr.json", RECIPES["fedgmr"])
    died = fedgmr("run", "fedgmr.json", "output=run", before=partial(die_at, event, file))
    assert died.code == KILLED
    _go_on(fedgmr, "fedgmr")
    assert left_by(fedgmr.folder / "run") == expected


@pytest.mark.parametrize("method", [*(method for method in BUILT_IN if method not in RECIPES), "momentum", "oort"])
def test_every_other_method_too(method: str, fedgmr: Command, undisturbed: Callable[[str], Any]) -> None:
    expected, _ = undisturbed(method)
    write_recipe(fedgmr.folder / f"{method}.json", _recipe(method))
    die = partial(die_at, "replaced", "checkpoints", 3)
    assert fedgmr("run", f"{method}.json", "output=run", before=die).code == KILLED
    _go_on(fedgmr, method)
    assert left_by(fedgmr.folder / "run") == expected


def test_checkpoints_have_what_clients_remember(undisturbed: Callable[[str], Any], tmp_path: Path) -> None:
    newest = max(undisturbed("momentum")[0][3].items())[1]
    (tmp_path / "checkpoint").write_bytes(newest)
    held = {name: memory for name, memory in load_file(tmp_path / "checkpoint").items() if name.startswith("memory.")}
    assert sorted(held) == [f"memory.{client}" for client in range(5)]
    assert all(abs(memory).max() > 0 for memory in held.values())


def test_killed_while_resuming(fedgmr: Command, undisturbed: Callable[[str], Any]) -> None:
    """Again and again, at the second checkpoint of each attempt, and once while the metrics are cut back."""
    expected, _ = undisturbed("fedgmr")
    write_recipe(fedgmr.folder / "fedgmr.json", RECIPES["fedgmr"])
    die = partial(die_at, "replaced", "checkpoints", 2)
    assert fedgmr("run", "fedgmr.json", "output=run", before=die).code == KILLED
    cut = partial(die_at, "replace", "metrics.jsonl")
    assert fedgmr("resume", "run", before=cut).code == KILLED
    attempts = 0
    while fedgmr("resume", "run", before=die).code == KILLED:
        attempts += 1
    assert attempts >= 3
    assert left_by(fedgmr.folder / "run") == expected


def test_killed_from_outside(fedgmr: Command) -> None:
    """The real command, killed by another process at the sight of its second checkpoint."""
    _kill_from_outside(fedgmr, recipe("dropped", seconds=2500.0), delay=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(20))
def test_killed_from_outside_at_any_moment(moment: int, fedgmr: Command) -> None:
    draw = random.Random(moment)
    task, method = draw.choice([("dropped", "fedgmr"), ("normed", "fedasync"), ("normed", "fedavg")])
    seconds = {"fedgmr": 9000.0, "fedasync": 1200.0, "fedavg": 20000.0}[method]
    _kill_from_outside(fedgmr, recipe(task, method, seconds=seconds), delay=draw.uniform(0.0, 1.0))


def _kill_from_outside(fedgmr: Command, data: dict[str, Any], *, delay: float) -> None:
    folder = fedgmr.folder
    write_recipe(folder / "r.json", data)
    for attempt in range(6):  # sooner, where the run was finished before
        name = f"run{attempt}"
        process = spawn("run", "r.json", f"output={name}", folder=folder)
        while len(list((folder / name / "checkpoints").glob("tick-*"))) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        time.sleep(delay / 2**attempt)
        process.kill()
        process.communicate()
        if not (folder / name / "summary.json").exists():
            break
    assert process.returncode == KILLED
    assert fedgmr("resume", name).code == 0
    assert fedgmr("run", "r.json", "output=whole").code == 0
    assert left_by(folder / name) == left_by(folder / "whole")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died at its sixth checkpoint and holds two."""
    folder = tmp_path_factory.mktemp("interrupted")
    write_recipe(folder / "r.json", RECIPES["fedgmr"])
    command = Command(folder, tmp_path_factory.mktemp("streams"))
    die = partial(die_at, "unlink", "checkpoints", 4)
    assert command("run", "r.json", "output=run", before=die).code == KILLED
    (folder / "run" / "checkpoints" / "tick-000000008.safetensors").unlink()  # what the run was about to do
    assert len(_checkpoints(folder / "run")) == 2
    return folder / "run"


class TestDamage:
    """Files that something else has damaged."""

    @pytest.fixture
    def run(self, interrupted: Path, fedgmr: Command) -> Path:
        return Path(shutil.copytree(interrupted, fedgmr.folder / "run"))

    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: data[:-1] + bytes([data[-1] ^ 1]),
            lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
            lambda data: data.replace(b'\\"tick\\": 12', b'\\"tick\\": 13'),
            lambda data: data.replace(b'\\"recorded\\": ', b'\\"recorded\\": 1'),
            lambda data: data[: len(data) // 2],
            lambda data: data[:5],
            lambda data: b"",
            lambda data: b"\xff" * len(data),
            lambda data: (2**60).to_bytes(8, "little") + data[8:],
        ],
        ids=["last byte", "header byte", "tick", "records", "half", "five bytes", "empty", "ones", "header length"],
    )
    def test_the_newest_checkpoint(
        self, damage: Callable[[bytes], bytes], run: Path, fedgmr: Command, undisturbed: Callable[[str], Any]
    ) -> None:
        newest = _checkpoints(run)[-1]
        before = newest.read_bytes()
        newest.write_bytes(damage(before))
        assert newest.read_bytes() != before
        ended = fedgmr("resume", "run")
        assert ended.code == 0, ended.err
        (warning,) = (line for line in ended.err.splitlines() if "warning" in line)
        assert newest.name in warning
        assert "Falling back" in warning
        assert left_by(run) == undisturbed("fedgmr")[0]

    def test_every_checkpoint(self, run: Path, fedgmr: Command) -> None:
        files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        for number, path in enumerate(_checkpoints(run)):
            path.write_bytes(files[path][: 100 * number])
        ended = fedgmr("resume", "run")
        assert ended.code == 2
        *warnings, last = ended.err.splitlines()
        assert len(warnings) == 2
        assert last.startswith("fedgmr: None of the 2 checkpoints in run/checkpoints is valid")
        assert (run / "metrics.jsonl").read_bytes() == files[run / "metrics.jsonl"]  # nothing more is lost
        assert not (run / "summary.json").exists()

    @pytest.mark.parametrize("tail", [b'{"seconds": 30', b"\n", b'{"a": "\xc3'])
    def test_a_half_written_line(
        self, tail: bytes, run: Path, fedgmr: Command, undisturbed: Callable[[str], Any]
    ) -> None:
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(tail)
        _go_on(fedgmr, "fedgmr")
        assert left_by(run) == undisturbed("fedgmr")[0]

    def test_metrics_cut_behind_the_checkpoint(self, run: Path, fedgmr: Command) -> None:
        metrics = run / "metrics.jsonl"
        metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
        assert "metrics.jsonl has 1 rows" in fedgmr("resume", "run").refusal()


def _checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("tick-*.safetensors"))
