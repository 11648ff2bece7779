"""Tables from run directories that the tests write: cells, MRI, missing runs, notes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fedgmr.experiments.estimate import Estimate
from fedgmr.experiments.run import run_recipe
from fedgmr.experiments.sweep import PlannedRun
from fedgmr.methods import PAPER
from fedgmr.paper.computed import computed_table
from fedgmr.paper.grid import Setting
from fedgmr.paper.growth import DENSITIES, slope
from fedgmr.paper.making import make_table
from fedgmr.paper.numbers import Paper
from fedgmr.paper.planning import COMPUTED, Request, TablePlan, plan_table, studies
from fedgmr.paper.rendering import write_table
from fedgmr.paper.tables import Cell, Table
from fedgmr.recipe import Recipe
from fedgmr.reporting.records import read_run
from fedgmr.settings.refusals import SettingError

from .conftest import HIGH, write_run


def planned(request: Request, paper: Paper, directories: Mapping[str, list[Path]]) -> TablePlan:
    """A plan of the setting High non-IID FEMNIST whose runs lie in given directories, by variant."""
    study = studies()[request.name]
    cells: dict[tuple[Setting, str], list[PlannedRun]] = {}
    for variant in study.variants(short=request.short):
        for number, directory in enumerate(directories.get(variant, [Path("nowhere") / variant])):
            recipe = study.recipe(
                HIGH, variant, protocol=request.protocol, seed=number, short=request.short, overrides=()
            )
            run = PlannedRun(key=str(directory), recipe=recipe, directory=directory, status="missing")
            cells.setdefault((HIGH, variant), []).append(run)
    return TablePlan(request=request, study=study, paper=paper, settings=(HIGH,), cells=cells)


def growth_recipe(variant: str, *words: str, seed: int = 0, short: bool = False) -> Recipe:
    study = studies()["density-growth"]
    return study.recipe(HIGH, variant, protocol="fair", seed=seed, short=short, overrides=words)


def cell(table: Table, row: str, column: str = "FEMNIST non-IID") -> Cell:
    (block,) = table.blocks
    return block.cells[row, column]


def test_baselines_with_the_improvement(tmp_path: Path, paper: Paper) -> None:
    levels = dict(zip(PAPER, (0.8, 0.5, 0.4, 0.8, 0.8, 0.8, 0.8), strict=True))
    dirs = {v: [write_run(tmp_path / v, [level] * 101, variant=v)] for v, level in levels.items()}
    table = make_table(planned(Request(name="baselines"), paper, dirs))
    gmr = cell(table, "FedGMR")
    assert gmr.ours is not None
    assert gmr.paper is not None
    assert gmr.ours.mean == pytest.approx(80)
    assert (gmr.paper.mean, gmr.difference) == (81.86, pytest.approx(-1.86))
    improvement = cell(table, "MRI of FedGMR (%)")
    assert improvement.ours is not None
    assert improvement.ours.mean == pytest.approx((60 + 100) / 6)  # 80 over 50 and over 40, four times none
    assert improvement.paper is not None
    assert improvement.paper.mean == 3.73
    assert table.comparable


def test_views_are_in_the_table(tmp_path: Path, paper: Paper) -> None:
    merged = dict(zip(PAPER, (0.8, 0.5, 0.4, 0.5, 0.5, 0.5, 0.5), strict=True))
    dirs = {}
    for variant, level in merged.items():
        # Their padded models are as good as FedGMR, but for those that have no sub-models.
        padded = None if variant in ("fedavg", "fedasync") else [0.8] * 101
        alone = {"views": {"merged": {}}, "best_view": "merged"} if padded is None else {}
        dirs[variant] = [write_run(tmp_path / variant, [level] * 101, variant=variant, padded=padded, **alone)]
    table = make_table(planned(Request(name="baselines"), paper, dirs))
    heterofl, fedavg, improvement = (cell(table, row) for row in ("HeteroFL", "FedAvg", "MRI of FedGMR (%)"))
    numbers = [
        [measure and measure.mean for measure in (found.ours, found.best, found.larger)]
        for found in (heterofl, fedavg, improvement)
    ]
    assert numbers[:2] == [pytest.approx([50, 80, 80]), pytest.approx([50, 50, 50])]
    assert numbers[2] == pytest.approx([(5 * 60 + 100) / 6, (60 + 100) / 6, (60 + 100) / 6])
    assert (heterofl.best_view, fedavg.best_view) == ("padded", "merged")
    assert heterofl.difference == pytest.approx(80 - 79.80)
    assert any(note.startswith("difference: the larger of merged and padded on the test set") for note in table.notes)
    assert not table.cautions


def test_tables_say_where_decisions_are_made_on_the_test_set(tmp_path: Path, paper: Paper) -> None:
    words = {"decides_on_test": True, "best_view": None, "metric": "top-5 accuracy"}
    dirs = {"fedgmr": [write_run(tmp_path / "run", [0.8] * 101, padded=[0.7] * 101, protocol="released", **words)]}
    table = make_table(planned(Request(name="baselines", protocol="released"), paper, dirs))
    assert table.columns == ("ours", "larger", "paper", "difference")
    assert [text.partition(":")[0] for text in table.cautions] == ["decisions on the test set"]
    assert "FEMNIST: top-5 accuracy" in table.notes
    assert table.heading == "FedGMR and the baselines (protocol released)"


def test_runs_are_found_without_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGMR_DATA", raising=False)
    write_run(tmp_path / "results" / "a", [0.8] * 101)
    write_run(tmp_path / "results" / "b", [0.8] * 101, variant="fedavg", seed=1)
    write_run(tmp_path / "results" / "c", [0.8] * 101, variant="fjord", overrides=["training.steps=4"])
    request = Request(name="baselines", task="femnist", heterogeneity="high", split="noniid", seeds=2)
    plan = plan_table(request, tmp_path / "store", also=[tmp_path / "results"])
    assert plan.summary() == "14 runs: 2 finished, 12 to do."
    assert {run.directory.name for run in plan.runs if not run.to_do} == {"a", "b"}
    found = cell(make_table(plan), "FedAvg")
    assert found.ours is not None
    assert found.ours.seeds == 1


def test_what_is_missing_is_said(tmp_path: Path, paper: Paper) -> None:
    stand_in = {"stand_in": "EMNIST stands in for FEMNIST"}
    dirs = {
        "fedgmr": [
            write_run(tmp_path / "0", [0.8] * 101, **stand_in),
            write_run(tmp_path / "1", [0.8] * 101, seed=1, status="unfinished"),
        ],
        "fedavg": [write_run(tmp_path / "2", [0.5] * 101, variant="fedavg", status="diverged")],
    }
    table = make_table(planned(Request(name="baselines", seeds=2), paper, dirs))
    assert cell(table, "FedGMR").stand_in
    assert (cell(table, "FedAvg").ours, cell(table, "FedAvg").absent) == (None, "diverged")
    assert (cell(table, "FIARSE").ours, cell(table, "FIARSE").absent) == (None, "missing")
    assert cell(table, "MRI of FedGMR (%)").ours is None
    assert "1 cells have fewer than 2 finished seeds" in (*table.cautions, *table.notes)
    assert "† stand-in data: EMNIST stands in for FEMNIST" in (*table.cautions, *table.notes)


def test_short_runs_and_changed_settings_are_not_comparable(tmp_path: Path, paper: Paper) -> None:
    dirs = {"fedgmr": [write_run(tmp_path / "0", [0.1, 0.2, 0.3], short=True)]}
    table = make_table(planned(Request(name="ablation", short=True), paper, dirs))
    assert (table.short, table.comparable) == (True, False)
    assert table.heading.endswith("(protocol fair, short runs)")
    assert any("only 2 evaluations around t*" in note for note in table.notes)
    tuned = Request(name="ablation", overrides=("method.restoration.patience=3", "device=cpu"))
    assert make_table(planned(tuned, paper, {})).comparable
    assert not make_table(planned(Request(name="ablation", overrides=("seconds=10",)), paper, {})).comparable


def test_patience_by_hand(tmp_path: Path, paper: Paper) -> None:
    levels = {"fedgmr_without_restoration": 0.7, "fedgmr/patience=3": 0.72, "fedgmr/patience=5": 0.8}
    levels |= {"fedgmr/patience=10": 0.78, "fedgmr/patience=20": 0.71}
    dirs = {v: [write_run(tmp_path / str(i), [x] * 101, variant=v)] for i, (v, x) in enumerate(levels.items())}
    table = make_table(planned(Request(name="patience"), paper, dirs))
    for row, ours, theirs in (
        ("w/o GMR", 70, 79.69),
        ("lowest of these", 71, 79.63),
        ("highest of these", 80, 81.86),
        ("best gain", 10, 2.17),
    ):
        found = cell(table, row)
        assert found.ours is not None
        assert found.paper is not None
        assert (found.ours.mean, found.paper.mean) == (pytest.approx(ours), theirs)
    assert cell(table, "patience 5").paper is None
    del dirs["fedgmr/patience=20"]
    assert cell(make_table(planned(Request(name="patience"), paper, dirs)), "lowest of these").ours is None


def test_plugin_has_steps_across(tmp_path: Path, paper: Paper) -> None:
    dirs = {"fjord+aux": [write_run(tmp_path / "0", [0.8] * 101, variant="fjord+aux")]}
    table = make_table(planned(Request(name="plugin"), paper, dirs))
    found = cell(table, "FjORD", "+Aux")
    assert found.difference == pytest.approx(80 - 82.16)
    assert cell(table, "FjORD", "+Aux+GMR").ours is None


def test_growth_is_the_slope_of_a_stage(tmp_path: Path) -> None:
    # 8,000 merges: 40 points in the first tenth, none later.
    accuracies = np.interp(np.arange(101), [0, 10, 100], [0.1, 0.5, 0.5])
    run = read_run(write_run(tmp_path / "run", [float(value) for value in accuracies]))
    assert slope(run, 0.0, 0.1) == pytest.approx(40 / 8)
    assert slope(run, 0.5, 1.0) == pytest.approx(0, abs=1e-9)


def test_growth_recipes_differ_in_density_alone() -> None:
    recipe = growth_recipe("density=0.3", "device=cpu", seed=1, short=True)
    assert recipe.method.ladder == (0.3, 1.0)
    assert {link.density for link in recipe.fleet.resolved_links()} == {0.3}
    assert (recipe.seconds, recipe.seed, recipe.method.restoration) == (39, 1, None)
    other = growth_recipe("density=1.0", "seconds=7", seed=1, short=True)
    assert (other.method.ladder, other.seconds) == ((1.0,), 7)


def test_growth_tests_the_sub_model_that_everybody_trains() -> None:
    words = ["task=e2e.tiny:dense", "partition=iid", "seconds=12", "training.batch_size=10", "method.interval=5"]
    result = run_recipe(growth_recipe("density=0.3", *words), None)
    weights = [tensor for name, tensor in result.model.items() if name.endswith("weight")]
    kept = sum(int(tensor.count_nonzero()) for tensor in weights)
    assert kept == round(0.3 * (16 * 16 + 16 * 4))
    assert result.history[-1]["updates"] == [12] * 10  # everybody, to every merge
    assert result.history["accuracy"][-1] > result.history["accuracy"][0]


def test_growth_has_a_figure_and_says_what_the_paper_says(tmp_path: Path, paper: Paper) -> None:
    dirs = {}
    for number, density in enumerate(DENSITIES):
        early, end = 0.5 - 0.3 * abs(density - 0.3), 0.5 + 0.4 * density
        curve = [float(x) for x in np.interp(np.arange(101), [0, 10, 100], [0.0, early, end])]
        dirs[f"density={density}"] = [write_run(tmp_path / f"run{number}", curve)]
    plan = planned(Request(name="density-growth"), paper, dirs)
    table = make_table(plan)
    expected = "fastest at density 0.3 in the early stage (paper: up to 0.4) and at density 1 in the late one"
    assert any(expected in note for note in table.notes)
    page = write_table(table, tmp_path / "out")
    assert (tmp_path / "out" / "growth-femnist.png").stat().st_size > 1000
    assert "data:image/png" in page.read_text()


def test_requests_that_cannot_be() -> None:
    with pytest.raises(SettingError, match="'baseline' is not known: did you mean baselines"):
        Request(name="baseline")
    with pytest.raises(SettingError, match="--seeds is 0"):
        Request(name="baselines", seeds=0)
    with pytest.raises(SettingError, match="computed as a whole"):
        computed_table(Request(name="ims-cost", task="femnist"))
    with pytest.raises(SettingError, match="method=fedavg has no effect"):
        computed_table(Request(name="communication", overrides=("method=fedavg",)))
    assert len([*studies(), *COMPUTED]) == 9


def test_filters_keep_the_order_of_the_grid(paper: Paper) -> None:
    study = studies()["baselines"]
    chosen = Request(name="baselines", task="cifar10,femnist", heterogeneity="high", split="iid")
    assert [setting.task for setting in chosen.settings(study, paper)] == ["femnist", "cifar10"]
    assert Request(name="baselines").settings(study, paper) == study.settings(paper)
    with pytest.raises(SettingError, match="--task is 'cifar': did you mean cifar10"):
        Request(name="baselines", task="cifar").settings(study, paper)


def test_estimates_are_told_in_words(paper: Paper) -> None:
    plan = planned(Request(name="ablation"), paper, {})

    def text(*seconds: float | None, timed: bool = True, jobs: int = 1) -> str:
        return plan.estimate_text(Estimate(seconds=dict(zip("ab", seconds, strict=False)), timed=timed), jobs)

    assert text() == "Nothing to run."
    assert text(60.0, None) == "How long it takes is not known."
    expected = "About 3 min of computing, at best 80 s with 2 at once; 60 s to 2 min a run. Assumed: "
    assert text(60.0, 100.0, jobs=2).startswith(expected)
    assert text(60.0, 60.0, timed=False) == "About 2 min of computing; 60 s a run, going by earlier runs."
