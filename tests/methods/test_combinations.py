"""Parts that do not go together: one sentence that names them and the way out, before anything is run or written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import LINKS, SCALE, objects
from torch import Tensor, nn

from fedgmr import FleetSettings, Link, Method, Task, named_method, simulate
from fedgmr.recipe import recipe_from
from fedgmr.server.restoration import Saturation
from fedgmr.submodels.rankings import FullModel, Magnitude
from fedgmr.submodels.threshold import Threshold
from fedgmr.submodels.widths import RollingWindow, WidthPrefix
from fedgmr.training.rules import OrderedDropout, ThresholdedSGD, WidthSGD

RECIPE: dict[str, Any] = {"seconds": 60.0, "task": "e2e.tiny:normed", "method": "fedgmr"}

# method and overrides -> words of the sentence
WRONG: dict[str, tuple[str, list[str], list[str]]] = {
    "a window that grows": (
        "fedrolex",
        ["method.ranking.refresh=grow_only"],
        ["method.ranking.refresh is not a known key"],
    ),
    "distillation with one width": (
        "fjord",
        ["method.local.distillation=true", "method.ladder=[1.0]"],
        ["local.distillation is true", "the ladder has one width", "none to distil to"],
    ),
    "a width that is not on the ladder": (
        "fjord",
        ["method.local.widths=[0.05, 0.3, 1.0]"],
        ["local.widths has 0.3", "densities of the ladder, [0.05, 0.1, 0.2, 0.5, 1.0], or add it there"],
    ),
    "ordered dropout of single coordinates": (
        "fjord",
        ["method.ranking=taylor"],
        ["local is ordered_dropout and ranking is taylor", "width_prefix or rolling_window"],
    ),
    "a width of single coordinates": (
        "heterofl",
        ["method.ranking=magnitude"],
        ["local is width_sgd and ranking is magnitude", "needs a width", "another local rule"],
    ),
    "a width of the full model": (
        "fedavg",
        ["method.local=width_sgd"],
        ["local is width_sgd and ranking is full", "needs a width"],
    ),
    "updates that nobody can measure": (
        "fedgmr",
        ["method.restoration.metric=own_update", "evaluation.validation=clients"],
        ["evaluation.validation is clients and method.restoration.metric is own_update", "a server with samples"],
    ),
    "a server's watcher without samples": (
        "fedgmr",
        ["method.restoration.server=true", "evaluation.validation=clients"],
        ["evaluation.validation is clients and method.restoration.server is true", "set one of them otherwise"],
    ),
    "one update for all": (
        "fedgmr",
        ["method.restoration={metric: own_update, scope: global}"],
        ["metric is own_update and scope is global", "give scope: client"],
    ),
    "a threshold without its ranking": (
        "fiarse",
        ["method.ranking=magnitude"],
        ["local is thresholded_sgd and ranking is magnitude", "give ranking: threshold"],
    ),
    "a threshold by width": (
        "heterofl",
        ["method.local=thresholded_sgd"],
        ["local is thresholded_sgd and ranking is width_prefix", "give ranking: threshold"],
    ),
    "thresholds of another scope": (
        "fiarse",
        ["method.local.scope=layerwise"],
        ["local.scope is layerwise", "give ranking.scope the same"],
    ),
    "thresholds of another scope, the other way": (
        "fiarse",
        ["method.ranking.scope=layerwise"],
        ["local.scope is global", "give ranking.scope the same, global"],
    ),
    "restoration of the whole model": (
        "fedavg",
        ["method.restoration=saturation"],
        ["restoration is saturation", "every client holds the whole model"],
    ),
    "restoration in time of the whole model": (
        "fedasync",
        ["method.restoration=fixed_time"],
        ["restoration is fixed_time", "every client holds the whole model"],
    ),
    "restoration on a ladder of one": (
        "fedgmr",
        ["method.ladder=[1.0]"],
        ["restoration is saturation", "every client holds the whole model"],
    ),
    "restoration plugged into full models": ("fedavg+gmr", [], ["every client holds the whole model"]),
    "ordered dropout in a moving window": (
        "fjord",
        ["method.ranking=rolling_window"],
        ["ranking is rolling_window and local is ordered_dropout", "fixed channels, width_prefix"],
    ),
    "a local rule that is none": ("heterofl", ["method.local=widthsgd"], ["method.local is 'widthsgd'", "width_sgd"]),
    "a norm of another rule": ("fjord", ["method.local.norm=static"], ["method.local.norm is not a known key"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_go_together_is_told(case: str) -> None:
    method, overrides, words = WRONG[case]
    with pytest.raises(ValueError, match=r"\S") as refused:
        recipe_from(RECIPE, overrides, method=method)
    sentence = str(refused.value)
    for word in words:
        assert word in sentence
    assert "\n" not in sentence
    assert len(sentence) < 300
    assert sentence[-1] in ".?"


def test_what_goes_together_is_not_refused() -> None:
    for method, overrides in (
        ("fjord", ["method.local.distillation=true"]),
        ("fjord", ["method.ladder=[1.0]"]),
        ("fiarse", ["method.ranking.scope=layerwise", "method.local.scope=layerwise"]),
        ("fiarse", ["method.local=sgd"]),
        ("heterofl", ["method.ranking=rolling_window"]),
        ("heterofl", ["method.local=ordered_dropout"]),
        ("fedrolex", ["method.ranking=width_prefix"]),
        ("fedrolex+gmr", []),
        ("fedgmr", ["method.ranking=width_prefix"]),
        ("fedgmr", ["method.ranking=rolling_window", "method.local=width_sgd"]),
        ("fedgmr", ["method.ranking=threshold"]),
        ("fedgmr", ["method.ladder=[1.0]", "method.restoration=none"]),
        ("fedavg", ["method.aggregation=label_aware"]),
    ):
        recipe_from(RECIPE, overrides, method=method)


def test_methods_composed_in_python_are_checked_too() -> None:
    def compose(**parts: Any) -> Method:
        return Method(name="own", **parts)

    compose(ranking=WidthPrefix(), local=OrderedDropout(distillation=True))
    with pytest.raises(ValueError, match="one width"):
        compose(ranking=WidthPrefix(), local=OrderedDropout(distillation=True), ladder=(0.5,))
    with pytest.raises(ValueError, match="needs a width"):
        compose(ranking=Magnitude(), local=WidthSGD())
    with pytest.raises(ValueError, match="fixed channels"):
        compose(ranking=RollingWindow(), local=OrderedDropout())
    with pytest.raises(ValueError, match="give ranking: threshold"):
        compose(ranking=Magnitude(), local=ThresholdedSGD())
    with pytest.raises(ValueError, match=r"give ranking\.scope the same"):
        compose(ranking=Threshold(scope="layerwise"), local=ThresholdedSGD())
    with pytest.raises(ValueError, match=r"local\.ranks is everything: give ranking\.ranks the same, everything"):
        compose(ranking=Threshold(ranks="prunable"), local=ThresholdedSGD())
    with pytest.raises(ValueError, match="holds the whole model"):
        compose(ranking=FullModel(), restoration=Saturation())
    with pytest.raises(ValueError, match="not increasing"):
        compose(ladder=(0.5, 0.1))


class Tangled(nn.Module):
    """A layer in the middle takes channels apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3), nn.Linear(64, 4)
        self.fold = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.fold(self.first(x)).flatten(1)[:, :64])


class Sorted(nn.Module):
    """Its outputs belong to no row of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1)).sort(-1).values


def task_of(model: type[nn.Module]) -> Task:
    samples = (torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 4)
    return Task(name="t", model=model, train=samples, test=samples)


def attempt(task: Task, method: str | Method, output: Path, links: tuple[Link, ...] = LINKS) -> str:
    """The sentence with which a run is refused; nothing is left behind."""
    fleet = FleetSettings(name="custom", links=links, scale=SCALE)
    with pytest.raises(ValueError, match=r"\S") as refused:
        simulate(task, method=method, fleet=fleet, seconds=60.0, output=output, device="cpu")
    assert not output.exists()
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("method", ["heterofl", "fjord", "fedrolex"])
def test_a_model_of_which_nothing_can_be_cut(method: str, tmp_path: Path) -> None:
    named = r"keep their full width at every density\. fold: pixel_shuffle is not followed"
    with pytest.warns(UserWarning, match=named):
        sentence = attempt(task_of(Tangled), method, tmp_path / "run")
    assert sentence.startswith("The densities 0.05 and 0.1 come to the same width, which keeps 340 of 340 coordinates")
    assert sentence.endswith("(Full width: fold: pixel_shuffle is not followed.)")
    # With one density there is nothing to tell apart, and the run goes.
    with pytest.warns(UserWarning, match=named):
        run = objects(task_of(Tangled), method, {"ladder": [1.0]}, links=LINKS[:1])
    assert run.server.levels.sizes == (340,)


def test_rankings_of_single_coordinates_take_any_model() -> None:
    for method in ("fedgmr", "fiarse", "fedavg"):
        assert objects(task_of(Tangled), method).server.plan is None


def test_a_density_that_is_not_on_the_ladder(tmp_path: Path) -> None:
    links = (*LINKS[:4], Link(down=1, up=0.25, density=0.3))
    for method in ("fedgmr", "heterofl", "fjord", "fedrolex", "fiarse"):
        sentence = attempt(tiny.normed(), method, tmp_path / "run", links)
        assert sentence == ("The density 0.3 is not on the ladder [0.05, 0.1, 0.2, 0.5, 1.0]: add it to method.ladder.")
    # Methods of full models do not look at it.
    assert objects(tiny.normed(), "fedavg", links=links).server.client_levels == [0] * 5


def test_densities_that_come_to_the_same_width(tmp_path: Path) -> None:
    # Sixteen hidden units of 21 coordinates each: a twentieth and a tenth of them are both one.
    sentence = attempt(tiny.dense(), "heterofl", tmp_path / "run")
    assert sentence.startswith("The densities 0.05 and 0.1 come to the same width, which keeps 25 of 340 coordinates:")
    assert objects(tiny.dense(), "fiarse").server.levels.sizes == (17, 34, 68, 170, 340)


def test_a_label_aware_mean_needs_an_output_layer_it_can_find(tmp_path: Path) -> None:
    method = named_method("fedavg", {"aggregation": "label_aware"})
    assert "no parameter of the model has a row for each of its outputs" in attempt(
        task_of(Sorted), method, tmp_path / "run"
    )
