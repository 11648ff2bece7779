"""`fedgmr sweep`: a grid of runs that can be killed at any moment and given again."""

import json
import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from e2e.command import Command, onward, write_recipe
from e2e.recipes import recipe

GRID = ("sweep", "r.json", "--grid", "training.learning_rate=0.1,0.2", "--methods", "fedgmr,fedasync", "--seeds", "2")
RUNS = 8
ROWS = RUNS * 16  # of the whole sweep: every run is evaluated at its start and 15 times after


@pytest.fixture
def sweep(fedgmr: Command) -> Command:
    write_recipe(fedgmr.folder / "r.json", recipe("dropped"))
    return fedgmr


def test_killed_at_random_three_times_nothing_is_repeated_and_nothing_lost(sweep: Command) -> None:
    store, draw = sweep.folder / "store", random.Random(4)
    words = (*GRID, "--jobs", "2", "--store", "store")
    kept = _Kept.of(store)
    for turn in range(3):
        # In the first, second and third quarter of the sweep; where in a tick or a write, nobody knows.
        moment = draw.randrange(ROWS // 4 * turn + 4, ROWS // 4 * (turn + 1))
        ended = sweep(*words, before=partial(_happen, "together", str(store), moment))
        assert ended.code == -signal.SIGKILL, ended.err
        kept.check()
        kept = _Kept.of(store)
        assert len(kept.finished) < RUNS
        assert kept.begun
    assert kept.finished

    ended = sweep(*words)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"{RUNS} runs: {len(kept.finished)} finished, ")
    kept.check()
    assert sweep(*GRID, "--store", "whole").code == 0
    whole = _all_left(sweep.folder / "whole")
    assert len(whole) == RUNS
    assert _all_left(store) == whole


def test_an_interrupt_and_a_lost_parent_leave_no_worker_behind(sweep: Command) -> None:
    store, words = sweep.folder / "store", (*GRID, "seconds=4000", "--jobs", "2", "--store", "store")
    ended = sweep(*words, before=partial(_happen, "interrupt", str(store), 4))
    assert ended.code == 130, ended.err
    assert ended.err.splitlines()[-1].endswith("` goes on from the last checkpoints.")
    assert onward(ended.err.splitlines()[-1]) == list(words)
    assert "Traceback" not in ended.err
    assert _gone(store)

    rows = _rows(store)
    assert sweep(*words, before=partial(_happen, "parent", str(store), rows + 4)).code == -signal.SIGKILL
    assert _gone(store)
    assert _rows(store) > rows


def test_what_it_prints_and_its_exit_code(sweep: Command) -> None:
    wild = {"methods": {"fedasync": {"local": {"proximal": 1e30}}}}
    write_recipe(sweep.folder / "r.json", recipe("dense", seconds=60.0, short=True, **wild))
    words = ("sweep", "r.json", "training.steps=4", "--grid", "seconds=60,80", "--store", "store", "--seeds", "2")
    ended = sweep(*words, "--methods", "fedavg")
    assert ended.code == 0, ended.err
    first, header, rule, *rows, note, _, report = ended.out.splitlines()
    assert first.startswith("4 runs: 4 to start. About ")
    assert first.endswith(" s, after a short trial. Store: store")
    assert header.split() == ["seconds", "method", "runs", "accuracy", "(%)", "at", "validation", "(%)"]
    assert set(rule) == {"-"}
    assert note == "note: short runs (4 of 4), not for conclusions"
    assert report == "Report: store/report.html"
    assert len((sweep.folder / "store" / "sweep.csv").read_text().splitlines()) == 5
    runs = sorted(path.parent.name for path in sweep.folder.glob("store/*/report.html"))
    assert [name.rpartition("-")[0] for name in runs] == [
        f"small-fedavg-seconds-{seconds}-s{seed}" for seconds in (60, 80) for seed in (3, 4)
    ]
    assert [row.split()[:3] for row in rows] == [["60", "FedAvg", "2"], ["80", "FedAvg", "2"]]
    finals = [json.loads(path.read_text()) for path in sweep.folder.glob("store/*/summary.json")]
    mean = sum(100 * end["final_accuracy"] for end in finals if end["seconds"] == 60.0) / 2
    assert rows[0].split()[3] == f"{mean:.2f}"

    ended = sweep(*words, "--methods", "fedavg,fedasync")
    assert ended.code == 3
    assert ended.out.startswith("8 runs: 4 finished, 4 to start. About ")
    assert "after a short trial" in ended.out  # FedAvg says nothing about another method
    assert ended.err.count("warning: small-fedasync-seconds-") == 4
    assert ended.out.count("2 diverged") == 2

    ended = sweep(*words, "--methods", "fedavg,fedasync")
    assert ended.code == 3
    assert ended.out.splitlines()[0] == "8 runs: 4 finished, 4 diverged. Store: store"

    ended = sweep(*words, "--methods", "fedavg", "--seeds", "3")
    assert ended.out.startswith("6 runs: 4 finished, 2 to start. About ")
    assert "going by earlier runs" in ended.out


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--jobs", "0"], "--jobs is 0: give at least 1."),
        (["--seeds", "0"], "--seeds is 0: give at least 1."),
        (["--gpu-share", "0.5"], "--gpu-share is 0.5: it is for --ray"),
        (["output=here"], "output is not a setting of a sweep: give --store DIR."),
        (["--grid", "seed"], "--grid is 'seed': write key=value,value,..."),
        (["--methods", "fedgmr,fedgrm"], "fedgrm"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], refusal: str, sweep: Command) -> None:
    assert refusal in sweep("sweep", "r.json", *words).refusal()
    assert [path.name for path in sweep.folder.iterdir()] == ["r.json"]


def test_compare_with_jobs_leaves_the_same_runs(sweep: Command) -> None:
    words = ("compare", "r.json", "seconds=120", "--methods", "fedgmr,fedavg")
    for jobs in ("1", "2"):
        ended = sweep(*words, "--jobs", jobs, f"output=of{jobs}")
        assert ended.code == 0, ended.err
    one, two = (sweep.folder / name for name in ("of1", "of2"))
    for run in ("fedgmr-seed3", "fedavg-seed3"):
        assert _left(one / run) == _left(two / run)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """What an interrupted sweep must still find later, untouched."""

    finished: dict[Path, list[tuple[str, int, int]]]  # files of finished runs, with what changes when one is written
    begun: dict[Path, bytes]  # the rows of the others that a checkpoint knows of, wall clock included

    @classmethod
    def of(cls, store: Path) -> "_Kept":
        finished, begun = {}, {}
        for run in store.glob("*"):
            if (run / "summary.json").exists():
                finished[run] = cls._files(run)
            elif checkpoints := sorted(run.glob("checkpoints/tick-*.safetensors")):
                with safe_open(checkpoints[-1], "pt") as file:
                    recorded = json.loads(file.metadata()["state"])["recorded"]
                begun[run] = b"".join((run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:recorded])
        return cls(finished=finished, begun=begun)

    def check(self) -> None:
        assert {run: self._files(run) for run in self.finished} == self.finished
        for run, rows in self.begun.items():
            assert (run / "metrics.jsonl").read_bytes().startswith(rows)

    @staticmethod
    def _files(run: Path) -> list[tuple[str, int, int]]:
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != "report.html")
        return [(path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in files]


def _left(run: Path) -> tuple[list[dict[str, Any]], bytes]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{**row, "wall": 0} for row in rows], (run / "model.safetensors").read_bytes()


def _all_left(store: Path) -> dict[str, tuple[list[dict[str, Any]], bytes]]:
    return {run.name: _left(run) for run in store.iterdir() if run.is_dir()}


def _rows(store: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in store.glob("*/metrics.jsonl"))


def _happen(what: str, store: str, moment: int) -> None:
    """Called in the process of the command: strikes as soon as the sweep has so many rows."""
    os.setsid()
    Path(store).with_suffix(".group").write_text(str(os.getpid()))

    def strike() -> None:
        while _rows(Path(store)) < moment:
            time.sleep(0.001)
        if what == "parent":
            os.kill(os.getpid(), signal.SIGKILL)
        os.killpg(0, signal.SIGKILL if what == "together" else signal.SIGINT)

    threading.Thread(target=strike, daemon=True).start()


def _gone(store: Path) -> bool:
    """Whether every process of the command ends within moments."""
    group = int(store.with_suffix(".group").read_text())
    for _ in range(1000):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    os.killpg(group, signal.SIGKILL)
    return False
