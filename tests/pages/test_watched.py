"""State and columns of runs: by hand, while they are written, killed, resumed, and hostile ones."""

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from e2e.recipes import recipe

from fedgmr.experiments.run import resume_run, run_recipe
from fedgmr.experiments.rundir import locked
from fedgmr.pages.columns import Columns, FollowedRows
from fedgmr.pages.watch import Watch
from fedgmr.recipe import recipe_from
from fedgmr.reporting.watcher import Watcher

from .conftest import row


def test_columns_by_hand(make_run: Any, tmp_path: Path, write_rows: Any) -> None:
    run = make_run(tmp_path / "run", 2)
    views = {"padded": {"accuracy": 0.75, "loss": 1.0}}
    last = row(
        2,
        views=views,
        metrics={"F1": None},
        validation=0.5,
        clients={"mean": 0.25, "accuracy": [0.1, 0.4]},
        checks_left=[3, None],
    )
    write_rows(run, [{**last, "loss": float("inf")}], mode="a")
    watch = Watch([run])
    watch.state()
    given = watch.columns(0, 1, 0)
    assert given is not None
    theory = {name: given["columns"].pop(name) for name in list(given["columns"]) if name.endswith(" (theory)")}
    # One client at density 0.5 and one whole: coverage 2 and 1. They send 1 and 3 updates from row to row.
    assert {name.removesuffix(" (theory)"): values for name, values in theory.items()} == {
        "least coverage": [1.0, 1.0],
        "coverage of level 0.5": [2.0, 2.0],
        "average density": [0.75, 0.75],
        "drift factor": [1.25, 1.25],  # 1/2 x 0.5 + 1/1 x 1
        "variance factor": [1.125, 1.125],  # 1/4 x 0.5 + 1
        "noise factor": [0.75, 0.75],  # 0.5 / 2 + 0.5 / 1
        "noise factor of the padded view": [0.375, 0.375],  # (0.5 x 2 + 0.5 x 1) / 4
        "untrained share": [0.0, 0.0],
        "mean participation": [2.0, 2.0],
        "participation skew": [0.5, 0.5],  # 1 on the half that both train, 0 on the other
        "dilution of the slowest": [0.5, 0.5],
        "stale drift factor": [4.0, 4.0],  # 1/1 x 1 x 2²
    }
    told = given.pop("theory")
    assert [term["name"] for term in told["terms"]][:3] == ["least coverage", "average density", "drift factor"]
    assert told["moves"] == [{"clients": 1, "from": 0.5, "to": 1.0, "drift": -0.25, "variance": -0.625, "noise": -0.25}]
    assert given == {
        "id": 0,
        "epoch": 0,
        "from": 1,
        "rows": 3,
        "columns": {
            "seconds": [60.0, 120.0],
            "tick": [5, 10],
            "wall": [2.0, 4.0],
            "accuracy": [0.4, 0.7],
            "loss": [1.75, None],
            "bytes_server": [4500, 9000],
            "in_flight": [2, 2],
            "validation": [None, 0.5],
            "view padded": [None, 0.75],
            "metric F1": [None, None],
            "clients mean": [None, 0.25],
        },
        "clients": {
            "level": [[0, 1], [0, 1]],
            "density": [[0.5, 1.0], [0.5, 1.0]],
            "staleness": [[None, 2], [None, 2]],
            "updates": [[1, 3], [2, 6]],
            "bytes_down": [[1000, 4000], [2000, 8000]],
            "bytes_up": [[500, 2000], [1000, 4000]],
            "own": [[None, None], [0.1, 0.4]],
            "checks_left": [[None, None], [3, None]],
        },
    }
    whole = watch.columns(0, 2, 7)
    assert whole is not None
    assert (whole["from"], len(whole["columns"]["seconds"])) == (0, 3), "of another epoch, so all rows"
    none = watch.columns(0, 99, 0, clients=False)
    assert none is not None
    assert (none["from"], none["columns"]["tick"], none["clients"]) == (3, [], {})
    assert watch.columns(1, 0, 0) is None


def test_state_by_hand(make_run: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "fedgmr-seed0")
    watch = Watch([tmp_path / "runs"])
    with locked(tmp_path / "runs" / "fedgmr-seed0"):
        state = watch.state()
    (entry,) = state["runs"]
    assert state["title"] == "runs"
    assert entry == {
        "id": 0,
        "name": "fedgmr-seed0",
        "status": "running",
        "problem": None,
        "seconds": 300.0,
        "eta": 6.0,  # 180 virtual seconds, 60 of them in two of the host
        "rows": 3,
        "epoch": 0,
        "settings": {},
        "method": "FedGMR",
        "seed": 0,
        "clients": 2,
        "ladder": [0.5, 1.0],
        "links": [[1.0, 0.5], [8.0, 4.0]],
        "clock": "virtual",
        "events": 3,
        "others": [],
        "notices": [],
        "marks": [],
        "page": None,
        "metric": {
            "key": "accuracy", "name": "accuracy", "unit": "%", "factor": 100.0, "higher_is_better": True, "digits": 2,
        },
        "summary": None,
    }  # fmt: skip
    make_run(tmp_path / "runs" / "below" / "fedgmr-seed1", 0, seed=1)
    first, second = sorted(watch.state()["runs"], key=lambda run: run["id"])
    assert (first["status"], first["eta"], first["settings"]) == ("interrupted", None, {"seed": 0})
    assert (second["name"], second["rows"], second["settings"]) == ("below/fedgmr-seed1", 0, {"seed": 1})
    shutil.rmtree(tmp_path / "runs" / "fedgmr-seed0")
    assert [run["id"] for run in watch.state()["runs"]] == [1]


def test_several_directories_and_one_that_is_not_there_yet(make_run: Any, tmp_path: Path) -> None:
    watch = Watch([tmp_path / "one", tmp_path / "two"])
    assert watch.state()["runs"] == []
    make_run(tmp_path / "one" / "seed0")
    make_run(tmp_path / "two")
    assert [run["name"] for run in watch.state()["runs"]] == ["one/seed0", "two"]


def test_settings_that_tell_runs_apart(make_run: Any, tmp_path: Path) -> None:
    more = ("execution: {{slots: {0}, tf32: {0}}}", "checkpoint: {{every: {0}}}", "device: {0}", "task: {{n: {0}}}")
    for number in range(5):
        run = make_run(tmp_path / f"run{number}", 0, title=f"Title {number}")
        text = (run / "recipe.yaml").read_text() + "\n".join(more).format(number)
        (run / "recipe.yaml").write_text(text)
    watch = Watch([tmp_path / f"run{number}" for number in range(5)])
    state = watch.state()
    assert state["title"] == "run0, run1, run2 and 2 more"
    assert [(run["method"], run["settings"]) for run in state["runs"]] == [
        (f"Title {number}", {"execution.tf32": number, "task.n": number}) for number in range(5)
    ]


def test_directories_of_one_name_keep_their_runs_apart(make_run: Any, tmp_path: Path) -> None:
    """A page knows a run by its name: what is chosen and hidden there."""
    places = [make_run(tmp_path / place) for place in ("a/runs/seed0", "b/runs/seed0", "b/runs/seed1")]

    def names(*directories: Path) -> list[str]:
        return [run["name"] for run in Watch(directories).state()["runs"]]

    assert names(tmp_path / "a/runs", tmp_path / "b/runs") == ["a/runs/seed0", "b/runs/seed0", "b/runs/seed1"]
    assert names(*places) == ["a/runs/seed0", "b/runs/seed0", "b/runs/seed1"]
    assert names(places[0], places[2]) == ["seed0", "seed1"]
    assert names(places[1], tmp_path / "b/runs") == ["seed0", "runs/seed1"]
    assert names(places[1], places[1]) == ["seed0"]


def test_many_runs_are_read_a_few_at_a_time(make_run: Any, tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / "runs" / f"seed{seed}", seed=seed)
    watch = Watch([tmp_path / "runs"])
    assert [len(watch.state(patience=0)["runs"]) for _ in range(4)] == [1, 2, 3, 3]


def test_levels_of_a_method_without_submodels(make_run: Any, tmp_path: Path, write_rows: Any) -> None:
    run = make_run(tmp_path / "run")
    write_rows(run, [row(0, level=[0, 0], density=[1.0, 1.0])])
    assert Watch([run]).state()["runs"][0]["ladder"] == [1.0]


def seen(rows: FollowedRows) -> tuple[int, int]:
    return rows.epoch, len(rows.columns)


def test_a_half_written_line_waits_and_nothing_is_read_twice(
    make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", 2)
    rows, text = FollowedRows(run), json.dumps(row(2)) + "\n"
    taken = []
    add = Columns.add
    monkeypatch.setattr(Columns, "add", lambda self, each: (taken.append(each["tick"]), add(self, each))[1])
    for part in (text[:40], text[40:-1], text[-1:]):
        rows.advance(at_work=True)
        assert seen(rows) == (0, 2)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(part)
    for _ in range(2):
        rows.advance(at_work=True)
        assert seen(rows) == (0, 3)
    assert taken == [0, 5, 10]


def replace(run: Path, rows: list[dict[str, Any]]) -> None:
    """As a resume cuts the file."""
    (run / "new").write_text("".join(json.dumps(each) + "\n" for each in rows))
    os.replace(run / "new", run / "metrics.jsonl")


def test_a_resume_goes_on_without_a_jump(make_run: Any, tmp_path: Path, write_rows: Any) -> None:
    run = make_run(tmp_path / "run", 3)
    rows = FollowedRows(run)
    rows.advance(at_work=True)
    replace(run, [row(0), row(1), row(2)])
    rows.advance(at_work=True)
    assert seen(rows) == (0, 3), "written anew, but nothing has changed"
    replace(run, [row(0)])
    rows.advance(at_work=True)
    assert seen(rows) == (0, 3), "the dropped rows stand until they are written again"
    write_rows(run, [row(1, wall=90.0)], mode="a")
    rows.advance(at_work=True)
    assert seen(rows) == (0, 3)
    write_rows(run, [row(2, wall=92.0), row(3, wall=94.0)], mode="a")
    rows.advance(at_work=True)
    assert seen(rows) == (1, 4), "the host's clock is another one"
    assert rows.columns.single["wall"].tolist() == [0.0, 90.0, 92.0, 94.0]


def test_a_resume_with_other_rows_shows_them_at_once(make_run: Any, tmp_path: Path, write_rows: Any) -> None:
    run = make_run(tmp_path / "run", 3)
    rows = FollowedRows(run)
    rows.advance(at_work=True)
    replace(run, [row(0), row(1, loss=9.0)])
    rows.advance(at_work=True)
    assert seen(rows) == (1, 2)
    replace(run, [row(0)])
    rows.advance(at_work=False)
    assert seen(rows) == (2, 1), "nobody will write the others again"
    write_rows(run, [row(0, loss=7.0)])  # in place, and of the same size
    os.utime(run / "metrics.jsonl", ns=(1, 1))
    rows.advance(at_work=False)
    assert (seen(rows), rows.columns.single["loss"].tolist()) == ((3, 1), [7.0])
    (run / "metrics.jsonl").unlink()
    rows.advance(at_work=False)
    assert seen(rows) == (4, 0)


def test_a_live_run_is_followed_to_its_end(tmp_path: Path) -> None:
    output = tmp_path / "live"
    work = threading.Thread(target=run_recipe, args=(recipe_from(recipe("dense", "fedgmr", seconds=300.0)), output))
    watch, counts = Watch([output]), []
    work.start()
    while work.is_alive():
        counts += [run["rows"] for run in watch.state()["runs"]]
        work.join(0.02)
    (entry,) = watch.state()["runs"]
    assert counts == sorted(counts)
    assert (entry["status"], entry["epoch"]) == ("finished", 0)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    columns = watch.columns(0, 0, 0)
    assert columns is not None
    assert columns["columns"]["loss"] == [each["loss"] for each in rows]
    assert columns["clients"]["bytes_up"] == [each["bytes_up"] for each in rows]
    assert entry["summary"]["final_accuracy"] == rows[-1]["accuracy"]
    assert not {"versions", "digest"} & entry["summary"].keys()


class Looking(Watcher):
    """Looks at the runs after every evaluation, as a page does, and interrupts the run after so many."""

    def __init__(self, watch: Watch, end: int) -> None:
        self.watch, self.end, self.seen = watch, end, list[tuple[str, int, int]]()

    def after_evaluation(self, row: Any) -> None:
        (entry,) = self.watch.state()["runs"]
        self.seen.append((entry["status"], entry["epoch"], entry["rows"]))
        if len(self.seen) == self.end:
            raise KeyboardInterrupt


def test_a_real_run_is_interrupted_and_resumed(tmp_path: Path) -> None:
    run, watch = tmp_path / "run", Watch([tmp_path])
    first, second = Looking(watch, 5), Looking(watch, 99)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe_from(recipe("dense", "fedgmr", seconds=300.0, checkpoint={"every": 1000})), run, first)
    assert first.seen == [("running", 0, count) for count in range(1, 6)]
    assert watch.state()["runs"][0]["status"] == "interrupted"
    resume_run(run, second, trust=["e2e"])
    total = len(second.seen)
    assert total > 5
    held = [("running", 0, 5)] * 4  # no checkpoint had counted them, so all are written again
    assert second.seen == held + [("running", 1, count) for count in range(5, total + 1)]
    (entry,) = watch.state()["runs"]
    assert (entry["status"], entry["epoch"], entry["rows"]) == ("finished", 1, total)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1, 2]",
        '{"seconds": 1}',
        "[" * 100_000,
        json.dumps(row(2, level=["<b>", 1])),
        json.dumps(row(2, level=[0])),
        json.dumps(row(2, loss=10**400)),
        json.dumps(row(2, views=[1])),
    ],
)
def test_rows_that_are_none(line: str, make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(line + "\n" + json.dumps(row(3)) + "\n")
    watch = Watch([run])
    (entry,) = watch.state()["runs"]
    assert (entry["status"], entry["rows"]) == ("unknown", 2)
    assert entry["problem"] == "Line 3 of metrics.jsonl is not a row of numbers."
    json.dumps([entry, watch.columns(0, 0, 0)], allow_nan=False)


@pytest.mark.parametrize(
    "text",
    [
        "seconds: [",
        "- 1",
        "{" * 5000,
        "seconds: .inf\nseed: !!binary aGk=",
        "seconds: 2026-01-01",
        "x: 0x" + "f" * 9000,
        "method: 3\nfleet: {links: [1]}",
        "method: {ladder: {a: 1}}",
        "? [1, 2]\n: {a: !!set {b, c}}",
    ],
)
def test_hostile_recipes_become_plain_data(text: str, make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2)
    (run / "recipe.yaml").write_text(text)
    state = Watch([run]).state()
    assert json.loads(json.dumps(state, allow_nan=False))["runs"][0]["rows"] == 2
    assert str(tmp_path) not in json.dumps(state)


def test_a_hostile_first_row_becomes_plain_data(make_run: Any, tmp_path: Path, write_rows: Any) -> None:
    run = make_run(tmp_path / "run")
    nan = float("nan")
    write_rows(run, [row(0, level=[0.5, None], density=[nan, 1], readings=[{"name": "x", "unit": nan}], seconds=nan)])
    state = Watch([run]).state()
    json.dumps(state, allow_nan=False)
    assert (state["runs"][0]["metric"]["name"], state["runs"][0]["status"]) == ("x", "interrupted")


def test_links_out_of_the_directory_are_not_followed(make_run: Any, tmp_path: Path) -> None:
    outside = make_run(tmp_path / "outside")
    (outside / "summary.json").write_text("{}")
    run = make_run(tmp_path / "runs" / "run", 2)
    for name in ("recipe.yaml", "metrics.jsonl", "summary.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside / name)
    (tmp_path / "runs" / "linked").symlink_to(outside)
    watch = Watch([tmp_path / "runs"])
    (entry,) = watch.state()["runs"]
    assert (entry["name"], entry["rows"], entry["seconds"], entry["summary"]) == ("run", 0, None, None)
    assert watch.provenance(0) == {"recipe": "", "facts": {}}


def test_rows_that_are_a_directory(make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2)
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    watch, before = Watch([tmp_path]), len(os.listdir("/dev/fd"))
    assert [entry["rows"] for _ in range(3) for entry in watch.state()["runs"]] == [0, 0, 0]
    assert len(os.listdir("/dev/fd")) == before  # no file is left open


def test_a_summary_that_was_changed(make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text('{"schema_version": 1, "status": "finished", "digest": "0"}')
    (entry,) = Watch([run]).state()["runs"]
    assert (entry["status"], entry["summary"]) == ("unknown", None)
    assert entry["problem"] == "summary.json cannot be understood, or was changed: `fedgmr verify` says more."
