"""Files of a run directory that do not belong together are refused, with a sentence that names the file."""

import hashlib
import json
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.sweep.runs import left, small
from fedgmr.cli.main import main
from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import create_run, locked, resolved_text, write_summary
from fedgmr.experiments.seal import digest_recipe, read_sealed_run, verify_run
from fedgmr.experiments.sweep import find_finished, recipe_key
from fedgmr.pages.report import write_report
from fedgmr.reporting.recorder import digest_rows
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.text import dump, read_mapping


class Stop(Watcher):
    """Interrupts a run after a tick."""

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def after_tick(self, state: Any) -> None:
        if state["tick"] == self.tick:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that was interrupted after six ticks, and one of another seed."""
    folder = tmp_path_factory.mktemp("kept")
    run_recipe(small(), folder / "finished")
    for name, seed in (("begun", 3), ("other", 4)):
        with pytest.raises(KeyboardInterrupt):
            run_recipe(small("fedgmr", f"seed={seed}"), folder / name, Stop(6))
    return folder


@pytest.fixture
def runs(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "runs"))


def edit(path: Path, **settings: Any) -> None:
    data = read_mapping(path)
    for key, value in settings.items():
        section, _, name = key.partition("__")
        data[section] = {**data[section], name: value} if name else value
    path.write_text(dump(data))


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def test_digests_by_hand() -> None:
    rows = [{"seconds": 0.0, "loss": None, "wall": 1.5}, {"seconds": 2.5, "loss": 0.25, "wall": 3.0}]
    text = b'{"seconds": 0.0, "loss": null}\n{"seconds": 2.5, "loss": 0.25}\n'
    assert digest_rows(rows) == hashlib.blake2b(text, digest_size=16).hexdigest()
    recipe = {"seed": 1, "name": "a", "device": "cpu", "execution": {"tf32": True, "slots": 3}, "task": {"name": "t"}}
    counted = b'{"execution": {"tf32": true}, "seed": 1, "task": {"name": "t"}}'
    assert digest_recipe(recipe) == hashlib.blake2b(counted, digest_size=16).hexdigest()


def test_whole_runs_hold_together(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(runs)]) == 0
    begun, finished, other, last = capsys.readouterr().out.splitlines()
    assert begun.endswith("begun: unfinished, 2 rows, 2 checkpoints")
    assert finished.endswith("finished: finished, 4 rows, 2 checkpoints")
    assert other.endswith("other: unfinished, 2 rows, 2 checkpoints")
    assert last == "3 runs, none that cannot be trusted."
    resume_run(runs / "begun")
    assert left(runs / "begun") == left(runs / "finished")
    summaries = [json.loads((runs / name / "summary.json").read_text()) for name in ("begun", "finished")]
    for field in ("recipe_digest", "rows", "rows_digest"):
        assert summaries[0][field] == summaries[1][field]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"seconds": 130.0},
        {"training__learning_rate": 0.2},
        {"evaluation__every_seconds": 30.0},
        {"execution__autocast": "bfloat16"},
    ],
)
def test_a_changed_recipe_is_not_resumed(runs: Path, change: dict[str, Any]) -> None:
    before = (runs / "begun" / "metrics.jsonl").read_bytes()
    edit(runs / "begun" / "recipe.yaml", **change)
    with pytest.raises(SettingError, match=r"begun/checkpoints/tick-.*was not written with the settings in .*recipe"):
        resume_run(runs / "begun")
    assert (runs / "begun" / "metrics.jsonl").read_bytes() == before


def test_fewer_clients_are_refused(runs: Path) -> None:
    data = read_mapping(runs / "begun" / "recipe.yaml")
    data["fleet"]["links"] = data["fleet"]["links"][:3]
    (runs / "begun" / "recipe.yaml").write_text(dump(data))
    with pytest.raises(SettingError, match="was not written with the settings"):
        resume_run(runs / "begun")


def test_what_a_resume_may_change(runs: Path) -> None:
    edit(runs / "begun" / "recipe.yaml", name="new", about="a word", checkpoint__keep=5, execution__slots=2)
    resume_run(runs / "begun")
    assert left(runs / "begun") == left(runs / "finished")


def test_the_checkpoint_of_another_run(runs: Path) -> None:
    shutil.copy(newest(runs / "other"), newest(runs / "begun"))
    with pytest.raises(SettingError, match=r"begun/checkpoints/tick-.* was not written with the settings"):
        resume_run(runs / "begun")


def flipped(text: str) -> str:
    row = json.loads(text.splitlines()[0])
    return text.replace(f'"accuracy": {row["accuracy"]}', f'"accuracy": {row["accuracy"] + 0.01}', 1)


def swapped(text: str) -> str:
    first, second, *rest = text.splitlines(keepends=True)
    return "".join([second, first, *rest])


@pytest.mark.parametrize("change", [flipped, swapped])
@pytest.mark.parametrize("name", ["begun", "finished"])
def test_changed_rows(runs: Path, name: str, change: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    metrics = runs / name / "metrics.jsonl"
    before = metrics.read_text()
    metrics.write_text(change(before))
    assert metrics.read_text() != before
    assert main(["verify", str(runs / name)]) == 2
    assert str(metrics) in capsys.readouterr().out
    if name == "begun":
        with pytest.raises(SettingError, match=r"metrics.jsonl does not begin with the \d rows that .*tick-"):
            resume_run(runs / name)
    else:
        with pytest.raises(ValueError, match=r"metrics.jsonl does not hold the 4 rows that summary.json"):
            write_report(runs / name)


@pytest.mark.parametrize("wall", ["a", None, -1, 1e400, []])
def test_a_host_clock_that_is_none(runs: Path, wall: Any) -> None:
    metrics = runs / "begun" / "metrics.jsonl"
    first, *rest = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([json.dumps({**json.loads(first), "wall": wall}) + "\n", *rest]))
    with pytest.raises(ValueError, match=r"metrics.jsonl line 1: 'wall' is .*, not seconds"):
        resume_run(runs / "begun")
    assert len(metrics.read_text().splitlines()) == 1 + len(rest)


def test_a_changed_model_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "finished"
    assert set(json.loads((run / "summary.json").read_text())["models"]) == {"model.safetensors", "views.safetensors"}
    views = run / "views.safetensors"
    whole = views.read_bytes()
    views.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert main(["model", str(run)]) == 2
    assert f"{views} is not the file that summary.json" in capsys.readouterr().err
    assert main(["verify", str(run)]) == 2
    views.unlink()
    assert verify_run(run) == "finished, 4 rows, 2 checkpoints, without views.safetensors"
    views.write_bytes(whole)
    assert verify_run(run) == "finished, 4 rows, 2 checkpoints"
    min((run / "checkpoints").iterdir()).unlink()
    assert verify_run(run) == "finished, 4 rows, 1 checkpoint"


def test_a_store_does_not_count_a_run_that_lies(runs: Path) -> None:
    recipe, found = small("fedgmr", "seed=7"), runs / "finished"
    assert find_finished([small()], [found]) == {recipe_key(small()): found}
    edit(found / "recipe.yaml", seed=7)
    with pytest.warns(UserWarning, match=r"finished/recipe.yaml is not the recipe that summary.json"):
        assert find_finished([recipe], [found]) == {}
    edit(found / "recipe.yaml", seed=3)
    summary = json.loads((found / "summary.json").read_text())
    (found / "summary.json").write_text(json.dumps({**summary, "final_accuracy": 0.99}))
    with pytest.warns(UserWarning, match=r"summary.json was changed after it was written"):
        assert find_finished([small()], [found]) == {}


def test_runs_without_digests_are_read_and_resumed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = runs / "finished" / "summary.json"
    summary = json.loads(path.read_text())
    old = {key: value for key, value in summary.items() if key not in ("digest", "recipe_digest", "rows_digest")}
    path.write_text(json.dumps(old))
    assert verify_run(runs / "finished") == "finished, 4 rows, 2 checkpoints, without digests"
    assert find_finished([small()], [runs / "finished"])
    shutil.rmtree(runs / "begun")
    with monkeypatch.context() as patch:
        patch.setattr("fedgmr.experiments.progress.checkpoint_seal", lambda *_: {})
        with pytest.raises(KeyboardInterrupt):
            run_recipe(small(), runs / "begun", Stop(6))
    resume_run(runs / "begun")
    assert left(runs / "begun") == left(runs / "finished")
    assert verify_run(runs / "begun") == "finished, 4 rows, 2 checkpoints"


def test_a_resume_keeps_the_number_of_threads(runs: Path) -> None:
    before = torch.get_num_threads()
    assert read_mapping(runs / "begun" / "recipe.yaml")["execution"]["threads"] == before
    torch.set_num_threads(before + 1)
    try:
        with warnings.catch_warnings(action="error"):
            resumed = resume_run(runs / "begun")
        assert torch.get_num_threads() == before + 1, "of this process"
    finally:
        torch.set_num_threads(before)
    assert resumed.summary["versions"]["threads"] == str(before)
    assert left(runs / "begun") == left(runs / "finished")


@pytest.mark.parametrize("setting", [3, None])
def test_another_number_of_threads_is_told(runs: Path, setting: int | None) -> None:
    before = torch.get_num_threads()
    edit(runs / "begun" / "recipe.yaml", execution__threads=setting)
    torch.set_num_threads(3)
    try:
        with pytest.warns(
            UserWarning, match=rf"with {before} threads and goes on with 3.*execution.threads to {before}"
        ):
            resume_run(runs / "begun")
    finally:
        torch.set_num_threads(before)


def test_threads_do_not_name_a_run() -> None:
    assert recipe_key(small("fedgmr", "execution.threads=3")) == recipe_key(small())


@pytest.mark.parametrize("text", ["[]", "null", "5", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00", '{"a": 1'])
def test_a_summary_that_is_none(runs: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("begun", "finished"):
        (runs / name / "summary.json").write_text(text)
        for verb in ("resume", "verify"):
            assert main([verb, str(runs / name)]) == 2
            printed = capsys.readouterr()
            assert "summary.json" in printed.out + printed.err


@pytest.mark.parametrize(
    "fields", [{"seconds": "a"}, {"ticks": [1]}, {"views": 5}, {"views": {"merged": 3}}, {"wall_seconds": 10**400}]
)
def test_a_summary_with_strange_values(runs: Path, fields: dict[str, Any]) -> None:
    summary = json.loads((runs / "finished" / "summary.json").read_text())
    del summary["digest"]
    write_summary(runs / "finished", summary | fields)
    with pytest.raises(ValueError, match=r"summary.json: .* is not what it should be"):
        read_sealed_run(runs / "finished")


@pytest.mark.parametrize("row", ["5", "[]", '{"views": 3}', "[" * 100_000 + "\n{}", '{"tick": 1e400}'])
def test_strange_rows(runs: Path, row: str) -> None:
    path = runs / "finished" / "metrics.jsonl"
    path.write_text(row + "\n" + path.read_text())
    with pytest.raises(ValueError, match=r"metrics.jsonl"):
        read_sealed_run(runs / "finished")


def test_two_new_runs_in_one_directory(tmp_path: Path) -> None:
    """One begins, the other is refused, and the recipe is that of the first."""
    began, problems = [], []

    def begin(seed: int, directory: Path, gate: threading.Barrier) -> None:
        gate.wait()
        try:
            with locked(directory):
                create_run(directory, resolved_text(small("fedgmr", f"seed={seed}")))
                began.append((directory, seed))
        except SettingError as error:
            problems.append(str(error))

    for number in range(100):
        gate = threading.Barrier(2)
        pair = [threading.Thread(target=begin, args=(seed, tmp_path / str(number), gate)) for seed in (1, 2)]
        for thread in pair:
            thread.start()
        for thread in pair:
            thread.join()
    assert len(began) == len(problems) == 100
    assert all(read_mapping(directory / "recipe.yaml")["seed"] == seed for directory, seed in began)
    assert all("in use by another process" in text or "holds a run already" in text for text in problems)


def test_a_run_that_another_process_ends_while_its_lock_is_waited_for(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def locked_after_its_end(directory: Path) -> Iterator[None]:
        shutil.copytree(runs / "finished", directory, dirs_exist_ok=True)
        with locked(directory):
            yield

    monkeypatch.setattr("fedgmr.experiments.rundir.locked", locked_after_its_end)
    with pytest.raises(SettingError, match=r"begun' is finished: there is nothing to resume"):
        resume_run(runs / "begun")
    assert verify_run(runs / "begun").startswith("finished, 4 rows")


def test_the_lock_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(SettingError, match=r"\.lock is a link"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"
