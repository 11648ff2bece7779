"""`fedgmr table` and `fedgmr results`: what is missing is run, what is done is not, and everything is marked."""

import csv
from pathlib import Path

import pytest

from e2e.command import Command

SETTINGS = (
    "task=e2e.tiny:dense",
    "fleet.scale=1e-4",
    "seconds=120",
    "training.batch_size=10",
    "partition=iid",
    "evaluation.every_seconds=5",
    "evaluation.test_samples=null",
    "evaluation.validation_samples=null",
)
WORDS = ("table", "fixed-time", "--task", "femnist", "--short", "--store", "store", *SETTINGS)


def times(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("summary.json")}


def test_a_table_from_nothing_to_done(fedgmr: Command) -> None:
    said = fedgmr(*WORDS, "--dry-run")
    assert said.code == 0
    first, second, *listed = said.out.splitlines()
    assert first == "4 runs: 0 finished, 4 to do. Store: store"
    assert second.startswith("About ")
    assert "a run. Assumed: a client's task" in second
    assert [line.split()[0] for line in listed] == ["missing"] * 4
    assert not (fedgmr.folder / "store").exists()

    empty = fedgmr(*WORDS, "--no-run", "--output", "empty")
    assert empty.code == 0
    assert "Assumed" not in empty.out
    assert empty.out.count(" missing ") == 4
    assert times(fedgmr.folder / "store") == {}

    made = fedgmr(*WORDS)
    assert made.code == 0, made.err
    assert "ours, merged model (short)" in made.out
    assert "best view by validation" in made.out
    assert "difference (not comparable)" in made.out
    assert "not the paper's settings: task=e2e.tiny:dense" in made.out
    done = times(fedgmr.folder / "store")
    assert len(done) == 4
    rows = list(csv.DictReader((fedgmr.folder / "store" / "fixed-time-fair-femnist-short" / "table.csv").open()))
    assert [row["row"] for row in rows] == ["GMR (ES)", "GMR (Fixed)", "w/o Asyn", "w/o GMR"]
    assert all(0 < float(row["ours"]) <= 100 and row["short"] == "1" for row in rows)
    assert [row["paper"] for row in rows] == ["81.71", "80.07", "78.8", "79.51"]

    again = fedgmr(*WORDS, "--jobs", "2")
    first, second, *_ = again.out.splitlines()
    assert first == "4 runs: 4 finished, 0 to do. Store: store, table: store/fixed-time-fair-femnist-short"
    assert second == "Nothing to run."
    assert times(fedgmr.folder / "store") == done

    # Another store finds them by --results; another table shares three of its runs.
    other = [word if word != "store" else "elsewhere" for word in WORDS]
    assert fedgmr(*other, "--no-run", "--results", "store").out.startswith("4 runs: 4 finished, 0 to do.")
    ablation = fedgmr(
        *[word.replace("fixed-time", "ablation") for word in WORDS],
        "--no-run",
        "--heterogeneity",
        "high",
        "--split",
        "noniid",
    )
    assert ablation.out.startswith("6 runs: 3 finished, 3 to do.")

    told = fedgmr("results", "store", "--output", "docs/results.md")
    assert told.out == "Results: docs/results.md\n"
    assert (fedgmr.folder / "docs" / "results.md").read_text().count("no cell of the paper's tables") == 4


def test_a_computed_table(fedgmr: Command) -> None:
    assert fedgmr("table", "communication", "--dry-run").out.startswith("0 runs: this table is computed")
    made = fedgmr("table", "communication", "--short")
    assert made.code == 0, made.err
    assert "0.05x client" in made.out
    assert (fedgmr.folder / "runs" / "tables" / "communication-paper-short" / "table.tex").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("table", "baseline"), "The table 'baseline' is not known: did you mean baselines?"),
        (("table", "baselines", "quickstart"), "'quickstart' is not a setting of a table"),
        (("table", "baselines", "--heterogeneity", "hi"), "--heterogeneity is 'hi': did you mean high?"),
        (("table", "baselines", "--protocol", "fairly"), "--protocol is 'fairly': did you mean fair?"),
        (("table", "plugin", "--task", "cifar10"), "The paper's table plugin has no such cell"),
        (("table", "ims-cost", "--seeds", "2"), "The table ims-cost is computed as a whole"),
        (("results", "nowhere"), "'nowhere' holds no runs"),
    ],
)
def test_refusals(fedgmr: Command, words: tuple[str, ...], sentence: str) -> None:
    said = fedgmr(*words)
    assert said.code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err
