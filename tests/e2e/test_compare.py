"""`fedgmr compare`: several methods and seeds in one command that can be given again."""

import csv
import json
from functools import partial
from pathlib import Path

import pytest

from e2e.command import Command, write_recipe
from e2e.crash import die_at
from e2e.recipes import recipe

WORDS = ("compare", "r.json", "--methods", "fedgmr,fedasync", "--seeds", "2", "output=both")
RUNS = ["fedasync-seed3", "fedasync-seed4", "fedgmr-seed3", "fedgmr-seed4"]
KEPT = ("metrics.jsonl", "summary.json", "model.safetensors", "recipe.yaml")


@pytest.fixture
def compare(fedgmr: Command) -> Command:
    write_recipe(fedgmr.folder / "r.json", recipe("dense", seconds=120.0))
    return fedgmr


def _left(folder: Path) -> dict[str, tuple[int, str]]:
    """Of every file of a run that a second command must not touch: when it was written, and its text."""
    files = [folder / run / name for run in RUNS for name in KEPT]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes().hex()) for path in files}


def test_compare_runs_resumes_and_repeats_nothing(compare: Command) -> None:
    both = compare.folder / "both"
    # Killed in the middle of the second run, then given again.
    assert compare(*WORDS, before=partial(die_at, "replaced", "checkpoints", 7)).code == -9
    assert sorted(path.name for path in both.iterdir()) == ["fedgmr-seed3", "fedgmr-seed4"]
    assert (both / "fedgmr-seed3" / "summary.json").exists()
    assert not (both / "fedgmr-seed4" / "summary.json").exists()
    first = (both / "fedgmr-seed3" / "summary.json").stat().st_mtime_ns
    kept = sorted((both / "fedgmr-seed4" / "checkpoints").glob("tick-*"))[0].name

    ended = compare(*WORDS)
    assert ended.code == 0, ended.err
    assert sorted(path.name for path in both.iterdir() if path.is_dir()) == RUNS
    assert (both / "fedgmr-seed3" / "summary.json").stat().st_mtime_ns == first
    assert kept >= "tick-000000002"
    for words in ("FedGMR", "FedAsync", "runs", "120 s", "±", "both/report.html"):
        assert words in ended.out

    page = (both / "report.html").read_text()
    assert "FedGMR" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    with (both / "comparison.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    for method, title in (("fedgmr", "FedGMR"), ("fedasync", "FedAsync")):
        ends = [json.loads((both / f"{method}-seed{seed}" / "summary.json").read_text()) for seed in (3, 4)]
        assert [end["seed"] for end in ends] == [3, 4]
        assert rows[title]["runs"] == "2"
        assert float(rows[title]["accuracy"]) == pytest.approx(sum(end["final_accuracy"] for end in ends) / 2)
    assert all((both / run / "report.html").exists() for run in RUNS)

    before = _left(both)
    again = compare(*WORDS)
    assert again.code == 0
    assert again.out == ended.out
    assert _left(both) == before

    # The resumed run is the one that a single command makes.
    assert compare("run", "r.json", "seed=4", "output=alone").code == 0
    alone, resumed = (
        (folder / "model.safetensors").read_bytes() for folder in (compare.folder / "alone", both / RUNS[3])
    )
    assert alone == resumed

    # Runs of other settings are not taken for those of these.
    other = compare(*WORDS, "training.learning_rate=0.2").refusal()
    assert "fedgmr-seed3" in other
    assert "other settings" in other
    assert _left(both) == before


def test_a_diverged_run_does_not_keep_the_others_from_theirs(compare: Command) -> None:
    wild = {"methods": {"fedasync": {"local": {"proximal": 1e30}}}}
    write_recipe(compare.folder / "r.json", recipe("dense", seconds=60.0, **wild))
    words = ("compare", "r.json", "--methods", "fedasync,fedavg", "output=both", "training.steps=4")
    for _ in range(2):
        ended = compare(*words)
        assert ended.code == 3, ended.err
        assert "warning: fedasync-seed3: The training of client" in ended.err
        assert "FedAvg" in ended.out
        assert "diverged" in ended.out
