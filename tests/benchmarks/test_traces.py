"""The benchmark of links that vary: leads and rows by hand, and the numbers of a tiny run."""

import math
from pathlib import Path

import pytest
import traces
from traces import ABLATION, FULL, Cell, Lead

import fedgmr
from fedgmr.reporting.records import read_run


def cell(variant: str, seed: int) -> Cell:
    return Cell(fleet="lte", variant=variant, seed=seed)


def test_a_lead_by_hand() -> None:
    ends = {cell(FULL, 3): 96.0, cell(FULL, 4): 98.0, cell(ABLATION, 3): 90.0, cell(ABLATION, 4): 94.0}
    found = {one: {"end": end} for one, end in ends.items()}
    # Variances 2 and 8.
    assert Lead.of(found, "lte", ABLATION, "end") == Lead(points=5.0, pooled=math.sqrt(5.0), ahead=2, seeds=2)
    assert str(Lead.of(found, "lte", ABLATION, "end")) == "+5.00 (+2.2; 2/2)"
    found[cell(FULL, 5)] = {"end": 0.0}
    assert Lead.of(found, "lte", ABLATION, "end").points == 5.0, "over the seeds that both have"
    assert str(Lead.of(found, "commute", ABLATION, "end")) == "-", "of no runs"


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    fedgmr.simulate(
        "e2e.tiny:dense",
        method="fedgmr",
        fleet={"name": "lte", "clients": 5, "scale": "model"},
        seconds=300.0,
        training={"steps": 2},
        evaluation={"every_seconds": 100.0},
        output=tmp_path / "run",
        progress=False,
    )
    run = read_run(tmp_path / "run")
    told = traces.figures(run)
    rows = run.history
    assert told["half"] == 100 * rows[1]["accuracy"]
    assert told["end"] == 100 * rows[-1]["accuracy"]
    tenths = [math.ceil(row["seconds"] / 30) for row in rows[1:]]
    assert len(set(tenths)) == 3, "one evaluation in each"
    assert [told[f"accuracy {tenth}"] for tenth in tenths] == [100 * row["accuracy"] for row in rows[1:]]
    assert math.isnan(told["density 1"])
    assert told["updates"] == sum(rows[-1]["updates"]) > 10
    assert told["levels_back"] == 0
    assert 0 < told["task"] < told["task_95"] < told["task_longest"]
    shares = [told[name] for name in ("receiving", "training", "sending", "waiting", "away", "lost")]
    assert sum(shares) == pytest.approx(100)
    found = {cell(FULL, 3): told, cell(ABLATION, 3): told}
    (first, second), (links, _) = list(traces.accuracy_rows(found, "lte")), list(traces.link_rows(found, "lte"))
    assert (first["method"], second["method"]) == ("FedGMR (1)", "FedGMR w/o restoration (1)")
    assert first["at the end"] == f"{told['end']:.2f}"
    assert links["lost %"] == "0"


def test_every_run_is_a_recipe_of_its_own() -> None:
    keys = {
        traces.recipe_key(Cell(fleet=fleet, variant=variant, seed=3).recipe)
        for fleet in traces.FLEETS
        for variant in traces.VARIANTS
    }
    assert len(keys) == len(traces.FLEETS) * len(traces.VARIANTS)
