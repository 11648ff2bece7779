"""The document of results: from run directories alone, with plain words about the ranking."""

from functools import partial
from itertools import product
from pathlib import Path

import pytest

from fedgmr.paper.grid import Setting
from fedgmr.paper.kept_runs import KeptRun
from fedgmr.paper.numbers import Paper
from fedgmr.paper.protocols import PROTOCOLS
from fedgmr.paper.results import results_document
from fedgmr.settings.refusals import SettingError

from . import conftest
from .conftest import HIGH, write_run

IID = Setting(task="cifar10", heterogeneity="low", split="iid")


def test_a_run_finds_its_cell(tmp_path: Path, paper: Paper) -> None:
    variants = ("fedgmr", "fedgmr/ga", "fedgmr/fixed_time", "fedgmr_without_restoration/fa", "fjord+aux")
    for number, variant in enumerate(variants):
        kept = KeptRun.read(write_run(tmp_path / str(number), [0.5] * 3, variant=variant), paper)
        assert kept is not None
        assert (kept.setting, kept.variant, dict(kept.differences)) == (HIGH, variant, {})
    kept = KeptRun.read(write_run(tmp_path / "iid", [0.5] * 3, setting=IID), paper)
    assert kept is not None
    assert kept.setting == IID


def test_a_run_belongs_to_the_protocol_whose_settings_it_has(tmp_path: Path, paper: Paper) -> None:
    for protocol, words in product(PROTOCOLS, ([], ["training.steps=4"], ["method.restoration.patience=10"])):
        directory = tmp_path / protocol / str(len(list(tmp_path.rglob("recipe.yaml"))))
        kept = KeptRun.read(write_run(directory, [0.5] * 101, protocol=protocol, overrides=words), paper)
        assert kept is not None
        assert (kept.protocol, kept.changes) == (protocol, "".join(words))
    text = results_document(tmp_path).text
    assert [line for line in text.splitlines() if line.startswith(("# ", "## ", "### FEMNIST"))] == [
        "# Results",
        "## How the numbers are made",
        *(
            line
            for protocol, about in PROTOCOLS.items()
            for line in (f"## Protocol {protocol}: {about.about}", "### FEMNIST, High, non-IID")
        ),
    ]


def test_what_differs_is_named(tmp_path: Path, paper: Paper) -> None:
    words = ["method.restoration.patience=10", "device=cuda", "execution.executor=graphed", "task.options.root=~/data"]
    kept = KeptRun.read(write_run(tmp_path / "tuned", [0.5] * 3, overrides=words), paper)
    assert kept is not None
    assert (kept.changes, kept.faithful) == ("method.restoration.patience=10", True)
    words = ["training.learning_rate=0.1", "partition.alpha=0.1", "method.coordination.period=9.5"]
    kept = KeptRun.read(write_run(tmp_path / "other", [0.5] * 3, overrides=words), paper)
    assert kept is not None
    assert (kept.changes, kept.faithful) == ("training.learning_rate=0.1, partition.alpha=0.1", False)


def test_document(tmp_path: Path) -> None:
    stand_in = {"stand_in": "EMNIST stands in"}
    for seed, level in enumerate((0.80, 0.82)):
        write_run(tmp_path / f"a{seed}", [level] * 101, seed=seed, **stand_in)
    write_run(tmp_path / "b", [0.815] * 101, variant="fedavg", commit=None, **stand_in)
    write_run(tmp_path / "deep" / "c", [0.7] * 101, variant="fjord", **stand_in)
    write_run(tmp_path / "d", [0.3] * 11, variant="fedgmr", short=True)
    write_run(tmp_path / "e", [0.3] * 11, variant="fiarse", status="diverged")
    write_run(tmp_path / "f", [0.3] * 11, overrides=["fleet={name: custom, links: [{down: 1, up: 1}]}", "task=mnist5k"])
    (tmp_path / "notes.md").write_text("FedAvg is *too good* here,\nbecause of A or B.\n")
    text = results_document(tmp_path).text
    row = "| FedGMR | the recipe's | 81.00 ± 0.00 (2 seeds: ± 1.41)† | 81.86 ± 0.19 | -0.86 |  | 0, 1 "
    assert f"{row}| 60 s | NVIDIA H200 | 0123456789 |" in text
    assert "| FedAvg | the recipe's | 81.50 ± 0.00† | 74.64 ± 0.60 | +6.86 |  | 0 | 60 s | NVIDIA H200 | ? |" in text
    assert text.index("| FedAvg |") < text.index("| FedGMR |") < text.index("| FjORD |")
    assert "FedGMR is first in 0 of 1 settings where others have been run, too (all seven: 0)" in text
    assert "The ranking differs from the paper's in 2 of 3 pairs:" in text
    assert (
        "- FedAvg is above FedGMR here (81.50 and 81.00, within the deviations) and below it in the paper "
        "(74.64 and 81.86, more than the deviations)." in text
    )
    assert "- FedAvg is above FjORD here" in text
    assert "Samples dealt to the clients: dirichlet 0.6." in text
    assert "- Ours: FedAvg > FedGMR > FjORD" in text
    assert "## FEMNIST, High, non-IID (short runs: not comparable)" in text
    assert "| e | diverged |" in text
    assert "| f | no cell of the paper's tables |" in text
    assert text.endswith("## Notes\n\nFedAvg is *too good* here,\nbecause of A or B.\n")
    assert text.count("\n- EMNIST stands in.\n") == 1
    assert text.index("† Ours are from data that stands in") < text.index("overview-fair.png")
    assert str(tmp_path) not in text


def test_views_are_in_the_document(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.80] * 101, padded=[0.82] * 101)
    write_run(tmp_path / "b", [0.70] * 101, variant="heterofl", padded=[0.84] * 101)
    write_run(tmp_path / "c", [0.81] * 101, variant="fedavg", views={"merged": {}}, best_view="merged")
    text = results_document(tmp_path).text
    head = "| method | settings | ours, merged model (%) | best view by validation (%) | "
    assert f"{head}larger of merged and padded on the test set (%) | paper (%) | difference | validation (%) |" in text
    row = (
        "| HeteroFL | the recipe's | 70.00 ± 0.00 | 84.00 ± 0.00 padded | 84.00 ± 0.00 | 79.80 ± 0.26 | +4.20 | 75.00 |"
    )
    assert row in text
    assert "FedGMR is first in 0 of 1 settings where others have been run, too (all seven: 0)" in text
    assert text.index("| HeteroFL |") < text.index("| FedGMR |") < text.index("| FedAvg |")
    assert "The ranking by the larger of merged and padded on the test set differs from the paper's in 1 of 3" in text
    assert "Decisions are made on the test set" not in text
    write_run(tmp_path / "d", [0.5] * 101, protocol="released", decides_on_test=True)
    write_run(
        tmp_path / "e", [0.4] * 101, padded=[0.6] * 101, variant="heterofl", protocol="released", decides_on_test=True
    )
    text = results_document(tmp_path).text.split("## Protocol released")[1].split("## Protocol")[0]
    assert "Decisions are made on the test set" in text
    assert text.index("| HeteroFL |") < text.index("| FedGMR |"), "by the larger: there is no best view"
    assert "FedGMR is first in 0 of 1 settings where others have been run, too (all seven: 0)" in text


def test_improvement_needs_all_seven(tmp_path: Path) -> None:
    from fedgmr.methods import PAPER

    for method in PAPER:
        write_run(tmp_path / method, [0.8 if method == "fedgmr" else 0.4] * 101, variant=method)
    text = results_document(tmp_path).text
    assert "Mean relative improvement of FedGMR: 100.00 % (paper 3.73 %)." in text
    assert "FedGMR is first in 1 of 1 settings where others have been run, too (all seven: 1)" in text


def test_several_patiences_are_several_lines_and_the_recipes_own_is_ranked(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.6] * 101)
    write_run(tmp_path / "b", [0.8] * 101, overrides=["method.restoration.patience=10"])
    write_run(tmp_path / "c", [0.7] * 101, variant="fedavg")
    write_run(tmp_path / "d", [0.9] * 101, variant="fedasync", overrides=["training.steps=9"])
    text = results_document(tmp_path).text
    assert "| FedGMR | method.restoration.patience=10 | 80.00" in text
    assert "| FedGMR | the recipe's | 60.00" in text
    assert "| +8.97 (not comparable) |" in text
    assert "- Ours: FedAvg > FedGMR\n- Paper: FedGMR > FedAvg\n" in text
    (tmp_path / "a" / "summary.json").unlink()
    assert "The ranking is the paper's.\n\n- Ours: FedGMR > FedAvg\n" in results_document(tmp_path).text


def test_the_patience_with_the_best_validation_is_ranked(tmp_path: Path) -> None:
    write_run = partial(conftest.write_run, protocol="paper")
    words = ["method.restoration.patience=10"]
    for seed, values in enumerate(((0.70, 0.71), (0.74, 0.75))):
        write_run(tmp_path / f"a{seed}", [0.8] * 101, seed=seed, validation_accuracy=values[0])
        write_run(tmp_path / f"b{seed}", [0.6] * 101, seed=seed, validation_accuracy=values[1], overrides=words)
    write_run(tmp_path / "c", [0.7] * 101, variant="fedavg")
    text = results_document(tmp_path).text
    assert "| 80.00 ± 0.00 (2 seeds: ± 0.00) | 81.86 ± 0.19 | -1.86 | 72.00 | 0, 1 |" in text
    assert "- Ours: FedAvg > FedGMR" in text, "60 % with the better validation, not 80 %"
    reason = (
        "with the seeds that all have (0, 1): the recipe's settings 72.00 %, method.restoration.patience=10 73.00 %."
    )
    assert f"FedGMR is ranked with method.restoration.patience=10: on held-out samples, {reason}" in text
    (tmp_path / "b1" / "summary.json").unlink()
    assert "- Ours: FedAvg > FedGMR" in results_document(tmp_path).text, "on the seed that both have"
    write_run(tmp_path / "b2", [0.6] * 101, seed=1, overrides=words)
    text = results_document(tmp_path).text
    assert "- Ours: FedGMR > FedAvg" in text, "one was not validated"
    assert "FedGMR is ranked with the recipe's settings: not all were validated on the same seeds." in text
    assert "| 71.00 (seed 0) | 0, 1 |" in text


def test_where_trials_have_tuned_the_recipe_whole_runs_with_other_patiences_are_not_ranked(tmp_path: Path) -> None:
    write_run(tmp_path / "own", [0.6] * 101, validation_accuracy=0.6)
    other = ["method.restoration.patience=10"]
    write_run(tmp_path / "other", [0.8] * 101, validation_accuracy=0.8, overrides=other)
    write_run(tmp_path / "fedavg", [0.7] * 101, variant="fedavg")
    text = results_document(tmp_path).text
    assert "- Ours: FedAvg > FedGMR" in text
    assert "is ranked with" not in text
    (tmp_path / "own" / "summary.json").unlink()
    assert "- Ours: FedGMR > FedAvg" in results_document(tmp_path).text, "the only one there is"


def test_nothing_to_tell(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs"):
        results_document(tmp_path)


def test_one_method_has_no_ranking(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.8] * 101)
    assert "ranking" not in results_document(tmp_path).text.partition("## FEMNIST")[2]


def test_the_first_page_has_every_cell_and_the_curves_are_of_what_is_ordered_by(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.80] * 101, padded=[0.82] * 101)
    write_run(tmp_path / "b", [0.70] * 101, variant="heterofl", padded=[0.84] * 101, stand_in="EMNIST")
    write_run(tmp_path / "c", [0.30] * 11, variant="fjord", short=True)
    document = results_document(tmp_path, "pictures")
    assert list(document.figures) == ["overview-fair.png", "fair-femnist-high-noniid.png"]
    for name in document.figures:
        assert f"](pictures/{name})" in document.text
    assert "2 of 192 cells have been run." in document.text, "24 settings, eight methods"

    overview = document.figures["overview-fair.png"]()
    written = [text.get_text() for text in overview.axes.texts]
    assert len(written) == 192 + 2, "the paper's numbers, and ours where there is a run"
    assert {"82.0", "84.0†"} <= set(written), "of the best views; short runs are not there"
    shades = [tuple(patch.get_facecolor()[0]) for patch in overview.axes.collections[:2]]
    assert shades[1][2] > shades[1][0], "HeteroFL is 4.2 points above the paper's: blue"

    curves = document.figures["fair-femnist-high-noniid.png"]().axes
    assert [float(line.get_ydata()[-1]) for line in curves.lines[:2]] == pytest.approx([84.0, 82.0])
    assert {"HeteroFL 84.0 %", "FedGMR 82.0 %"} <= {text.get_text() for text in curves.texts}
