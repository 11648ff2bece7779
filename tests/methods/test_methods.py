"""Methods by name: every one composes, runs, is decided by its seed, and pays for what travels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import LINKS, SCALE, bits, drive, objects, same

import fedgmr.methods
from fedgmr import FleetSettings, Method, Result, named_method, simulate
from fedgmr.experiments.assembly import Assembly
from fedgmr.experiments.checkpoint import Checkpoint, load_checkpoint
from fedgmr.experiments.sweep import grid_points, plan_comparison
from fedgmr.federation import federate
from fedgmr.methods import BUILT_IN, PAPER, PLUGGED
from fedgmr.recipe import recipe_from, recipe_schema
from fedgmr.server.aggregation import MaskAware, Mixing
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import Asynchronous, SemiAsynchronous, Synchronous
from fedgmr.server.label_aware import LabelAware
from fedgmr.server.restoration import Saturation
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.staleness import Polynomial
from fedgmr.submodels.rankings import FullModel, Taylor
from fedgmr.submodels.threshold import Threshold
from fedgmr.submodels.widths import RollingWindow, WidthPrefix
from fedgmr.tasks.partition import IID, Dirichlet
from fedgmr.training.optimizers import Adam
from fedgmr.training.rules import OrderedDropout, PlainSGD, ThresholdedSGD, WidthSGD
from fedgmr.training.schedules import TrainingSettings
from fedgmr.wire import map_bytes, update_bytes, values_bytes

SUB_MODEL = ("heterofl", "fjord", "fedrolex", "fiarse")
VARIANTS = [f"{name}{plug_ins}" for name in SUB_MODEL for plug_ins in ("+aux", "+aux+gmr")]
TITLES = {
    "fedgmr": "FedGMR",
    "fedgmr_without_restoration": "FedGMR w/o restoration",
    "fedgmr_without_asynchrony": "FedGMR w/o asynchrony",
    "fedgmr_without_buffer": "FedGMR w/o buffer",
    "fedgmr_without_ims": "FedGMR w/o IMS",
    "fedgmr_without_buffer_and_ims": "FedGMR w/o buffer and IMS",
    "fedavg": "FedAvg",
    "fedasync": "FedAsync",
    "heterofl": "HeteroFL",
    "fjord": "FjORD",
    "fedrolex": "FedRolex",
    "fiarse": "FIARSE",
}
RECIPE: dict[str, Any] = {"seconds": 10.0, "task": "mnist5k", "method": "fedgmr"}


# Composition


def test_there_are_twelve_with_titles() -> None:
    assert {name: named_method(name).title for name in BUILT_IN} == TITLES
    assert [named_method(name).name for name in BUILT_IN] == list(TITLES)


@pytest.mark.parametrize(
    ("name", "ranking", "local", "aggregation", "coordination"),
    [
        ("fedgmr", Taylor, PlainSGD, MaskAware, SemiAsynchronous),
        ("fedavg", FullModel, PlainSGD, MaskAware, Synchronous),
        ("fedasync", FullModel, PlainSGD, Mixing, Asynchronous),
        ("heterofl", WidthPrefix, WidthSGD, LabelAware, Synchronous),
        ("fjord", WidthPrefix, OrderedDropout, MaskAware, Synchronous),
        ("fedrolex", RollingWindow, WidthSGD, LabelAware, Synchronous),
        ("fiarse", Threshold, ThresholdedSGD, MaskAware, Synchronous),
    ],
)
def test_what_the_papers_methods_are_made_of(
    name: str, ranking: type, local: type, aggregation: type, coordination: type
) -> None:
    method = named_method(name)
    parts = (method.ranking, method.local, method.aggregation, method.coordination)
    assert tuple(map(type, parts)) == (ranking, local, aggregation, coordination)
    assert (method.restoration is not None) == (name == "fedgmr")
    assert method.ims == (name == "fedgmr")
    assert method.by_width == (name in ("heterofl", "fjord", "fedrolex"))
    assert method.label_aware == (name in ("heterofl", "fedrolex"))
    assert method.levels_in_ladder == ((1.0,) if name in ("fedavg", "fedasync") else (0.05, 0.1, 0.2, 0.5, 1.0))


def test_each_ablation_lacks_one_part() -> None:
    whole = named_method("fedgmr")

    def differs(name: str) -> set[str]:
        method = named_method(f"fedgmr_without_{name}")
        return {key for key in vars(whole) if getattr(whole, key) != getattr(method, key)} - {"name", "title"}

    assert differs("restoration") == {"restoration"}
    assert differs("asynchrony") == {"coordination"}
    assert differs("buffer") == {"buffer"}
    assert differs("ims") == {"ims"}
    assert differs("buffer_and_ims") == {"buffer", "ims"}


@pytest.mark.parametrize("name", [*SUB_MODEL, "fedavg"])
def test_aux_is_fedgmrs_workflow(name: str) -> None:
    base, plugged = named_method(name), named_method(f"{name}+aux")
    assert (plugged.coordination, plugged.staleness) == (SemiAsynchronous(), Polynomial(alpha=0.5))
    assert (plugged.buffer, plugged.ims) == (BufferRule(keep=True), True)
    assert plugged.title == f"{TITLES[name]}+Aux"
    assert plugged.name == f"{name}+aux"
    assert plugged.restoration is None
    assert (plugged.ranking, plugged.local, plugged.aggregation) == (base.ranking, base.local, base.aggregation)


@pytest.mark.parametrize("name", SUB_MODEL)
def test_gmr_is_restoration(name: str) -> None:
    aux, plugged = named_method(f"{name}+aux"), named_method(f"{name}+aux+gmr")
    assert plugged.title == f"{TITLES[name]}+Aux+GMR"
    assert plugged == replace(aux, name=f"{name}+aux+gmr", title=plugged.title, restoration=Saturation())
    alone = named_method(f"{name}+gmr")
    assert alone.title == f"{TITLES[name]}+GMR"
    assert alone.coordination == Synchronous()
    assert alone.restoration == Saturation()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("heterofll", "method.name is 'heterofll': did you mean heterofl?"),
        ("FedRolex", "method.name is 'FedRolex': did you mean fedrolex?"),
        ("fjrod", "did you mean fjord?"),
        ("median", "choose one of fedgmr, fedgmr_without_restoration"),
        ("heterofl+axu", "method.name is 'heterofl+axu': did you mean heterofl+aux?"),
        ("fjord+aux+grm", "did you mean fjord+gmr?"),
        ("fjord+momentum", "choose one of aux, gmr."),
        ("fedavgg+aux", "method.name is 'fedavgg': did you mean fedavg?"),
    ],
)
def test_unknown_names_get_a_suggestion(name: str, words: str) -> None:
    for attempt in (lambda: named_method(name), lambda: recipe_from({**RECIPE, "method": name})):
        with pytest.raises(SettingError) as refused:
            attempt()
        assert words in str(refused.value)


def test_nested_fields_are_overridden() -> None:
    method = named_method(
        "heterofl+aux+gmr",
        {"local": {"scaler": False}, "restoration": {"patience": 9}, "interval": 7},
        {"local": {"norm": "batch"}, "aggregation": {"label_aware": False}, "ladder": [0.25, 1], "interval": 8},
    )
    assert method.local == WidthSGD(scaler=False)  # what an override leaves out stays
    assert method.aggregation == LabelAware(label_aware=False)
    assert method.restoration == Saturation(patience=9)
    assert (method.ladder, method.interval) == ((0.25, 1.0), 8)
    assert method.title == "HeteroFL+Aux+GMR"
    assert named_method("fjord", {"local": {"distillation": True}}).local == OrderedDropout(distillation=True)
    assert named_method("fjord", {"local": "sgd"}).local == PlainSGD()
    assert named_method("fedgmr", {"restoration": None}).restoration is None
    for wrong, words in (
        ({"local": {"scalar": True}}, "method.local.scalar is not a known key: did you mean method.local.scaler?"),
        ({"ranking": "width_perfix"}, "did you mean width_prefix?"),
        ({"local": {"norm": "per_width"}}, "method.local.norm is 'per_width': give one of tracked, batch."),
    ):
        with pytest.raises(SettingError) as refused:
            named_method("heterofl", wrong)
        assert words in str(refused.value)


def test_settings_by_method_reach_plugged_methods_too() -> None:
    data = {**RECIPE, "methods": {"*+gmr": {"interval": 3}, "fjord*": {"local": {"distillation": True}}}}
    names = ("fjord+aux+gmr", "fjord", "heterofl+aux+gmr")
    methods = {name: recipe_from(data, method=name).method for name in names}
    assert [methods[name].interval for name in names] == [3, 25, 3]
    assert [getattr(methods[name].local, "distillation", None) for name in names] == [True, True, None]


SECTIONS = {
    "task": {"name": "mnist5k", "options": {"root": "here", "size": 1}},
    "partition": {"kind": "dirichlet", "alpha": 0.3, "min_samples": 7},
    "fleet": "low",
    "training": {"learning_rate": 0.02, "steps": 3},
    "methods": {
        "*": {"interval": 3, "training": {"batch_size": 7}},
        "hetero*": {"training": {"learning_rate": 0.05}, "task": {"options": {"size": 2}}},
        "heterofl": {
            "local": {"scaler": False},
            "partition": {"alpha": 0.6},
            "fleet": {"clients": 5},
            "network": {"sends": "shared"},
            "evaluation": {"test_samples": 9},
            "training": {"optimizer": {"kind": "adam", "beta1": 0.8}},
        },
    },
}


def test_sections_by_method_are_merged_into_the_recipes() -> None:
    data = {**RECIPE, **SECTIONS}
    other, tuned = recipe_from(data, method="fedavg"), recipe_from(data, method="heterofl")
    assert other.training == TrainingSettings(learning_rate=0.02, steps=3, batch_size=7)
    assert (other.partition, other.network.sends) == (Dirichlet(alpha=0.3, min_samples=7), "each")
    assert other.task.options == {"root": "here", "size": 1}
    assert tuned.training == TrainingSettings(learning_rate=0.05, steps=3, batch_size=7, optimizer=Adam(beta1=0.8))
    assert tuned.partition == Dirichlet(alpha=0.6, min_samples=7)
    assert (tuned.fleet.name, tuned.fleet.clients) == ("low", 5)
    assert (tuned.network.sends, tuned.evaluation.test_samples) == ("shared", 9)
    assert tuned.task.options == {"root": "here", "size": 2}
    assert tuned.method == named_method("heterofl", {"interval": 3, "local": {"scaler": False}})
    assert recipe_from(plain(tuned)) == tuned
    assert recipe_from(data, ["method=heterofl"]) == tuned
    entry = recipe_schema()["properties"]["methods"]["additionalProperties"]["properties"]
    assert {"interval", "local", "training", "task", "partition"} <= set(entry)
    assert recipe_schema()["properties"]["training"]["type"] == "object"


def test_the_command_line_comes_after_sections_by_method() -> None:
    words = ["training.learning_rate=0.5", "partition=iid", "fleet=high", "training.optimizer=sgd"]
    recipe = recipe_from({**RECIPE, **SECTIONS}, [*words, "task.options.root=there"], method="heterofl")
    assert recipe.training == TrainingSettings(learning_rate=0.5, steps=3, batch_size=7)
    assert (recipe.partition, recipe.fleet) == (IID(), FleetSettings())
    assert recipe.task.options == {"root": "there", "size": 2}
    recipe = recipe_from({**RECIPE, **SECTIONS}, ["methods.heterofl.training.steps=9"], method="heterofl")
    assert (recipe.training.steps, recipe.training.batch_size) == (9, 7)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"fj*": {"trainig": {}}}, r"methods\.fj\*\.trainig is not a known key: did you mean methods\.fj\*\.training"),
        ({"fj*": {"training": {"step": 3}}}, r"methods\.fj\*\.training\.step is not a known key: did you mean"),
        (
            {"fjord": {"training": {"steps": 0}}},
            r"methods\.fjord\.training\.steps is 0: give a whole number of at least 1",
        ),
        ({"heterofl": {"training": {"step": 3}}}, r"methods\.heterofl\.training\.step is not a known key"),
        ({"fjord": {"partition": {"alpha": 0.3}}}, r"methods\.fjord\.partition\.alpha is not a known key"),
        ({"fjord": 3}, r"methods\.fjord is 3: give a mapping of settings"),
    ],
)
def test_mistakes_in_sections_are_refused_whoever_runs(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        recipe_from({**RECIPE, "methods": entry}, method="heterofl")


@pytest.mark.parametrize("name", [*BUILT_IN, *VARIANTS])
def test_a_method_is_plain_data_and_back(name: str) -> None:
    recipe = recipe_from(RECIPE, method=name)
    assert recipe.method == named_method(name)
    assert recipe_from(plain(recipe)) == recipe


OWN = '''
from dataclasses import dataclass

from fedgmr import Method
from fedgmr.server.coordination import Synchronous
from fedgmr.submodels.rankings import Magnitude


@dataclass(frozen=True, kw_only=True)
class OwnMethod(Method):
    """A method with a field of its own."""

    pace: int = 2


def own() -> Method:
    return OwnMethod(name="own", title="Own", ranking=Magnitude(), coordination=Synchronous())


def untitled() -> Method:
    return Method(name="untitled", ranking=Magnitude())


def nothing() -> None:
    return None
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_methods_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_methods_of_a_user"


def test_a_method_by_import_path(own_module: str) -> None:
    method = named_method(f"{own_module}:own", {"pace": 5, "interval": 4})
    assert (method.title, method.interval) == ("Own", 4)
    assert method.pace == 5  # type: ignore[attr-defined]
    assert method.name == f"{own_module}:own"
    plugged = recipe_from({**RECIPE, "method": f"{own_module}:own+aux+gmr"}).method
    assert plugged.title == "Own+Aux+GMR"
    assert plugged.restoration == Saturation()
    assert named_method(f"{own_module}:untitled+aux").title == "untitled+Aux"
    result = run_of(f"{own_module}:own", seconds=60.0)
    assert result.summary["method_title"] == "Own"
    for name, words in (
        (f"{own_module}:onw", "cannot be imported (AttributeError"),
        (f"{own_module}_too:own", "cannot be imported (ModuleNotFoundError"),
        (f"{own_module}:nothing", "which returned NoneType: return a fedgmr Method."),
        ("json:dumps", "method.name is 'json:dumps': give a function that returns a fedgmr Method and takes no arg"),
    ):
        with pytest.raises(SettingError) as refused:
            named_method(name)
        assert words in str(refused.value)


def test_every_method_file_is_short() -> None:
    files = sorted(Path(fedgmr.methods.__file__).parent.glob("*.py"))
    assert {f"{name}.py" for name in PAPER} < {file.name for file in files}
    for file in files:
        assert len(file.read_text().splitlines()) < 150, file.name


def test_all_methods_are_the_papers_and_the_plugged(tmp_path: Path) -> None:
    runs = plan_comparison(grid_points(RECIPE, ["seed=4"], methods=["all"], seeds=2), tmp_path)
    assert PAPER == ("fedgmr", "fedavg", "fedasync", "heterofl", "fjord", "fedrolex", "fiarse")
    assert tuple(f"{name}+aux+gmr" for name in SUB_MODEL) == PLUGGED
    assert [run.recipe.method.name for run in runs] == [name for name in (*PAPER, *PLUGGED) for _ in range(2)]
    assert [run.name for run in runs[:4]] == ["fedgmr-seed4", "fedgmr-seed5", "fedavg-seed4", "fedavg-seed5"]
    assert len({run.name for run in runs}) == 22
    assert {run.recipe.seed for run in runs} == {4, 5}


# Runs

FLEET = FleetSettings(name="custom", links=tuple(LINKS), scale=SCALE)
TRAINING = {"learning_rate": 0.1, "batch_size": 10, "steps": 2}


def run_of(method: str | Method, *, seconds: float = 250.0, seed: int = 0, **settings: Any) -> Result:
    return simulate(
        tiny.normed(),
        method=method,
        fleet=FLEET,
        seconds=seconds,
        seed=seed,
        training=TRAINING,
        device="cpu",
        **settings,
    )


def brisk(name: str) -> Method:
    """At a pace at which a short run sees restoration."""
    method = named_method(name)
    if method.restoration is None:
        return method
    return named_method(name, {"interval": 1, "restoration": {"patience": 1}})


def rows(result: Result) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "wall"} for row in result.history]


@pytest.mark.parametrize("name", [*BUILT_IN, *VARIANTS])
def test_every_method_runs_and_is_decided_by_its_seed(name: str) -> None:
    first, again = (run_of(brisk(name), seconds=700.0 if name == "fedavg" else 250.0) for _ in range(2))
    assert rows(first) == rows(again)
    assert all(torch.equal(first.model[key], again.model[key]) for key in first.model)
    start, end = first.history[0], first.history[-1]
    assert end["tick"] == first.summary["ticks"] > 1
    assert all(count > 0 for count in end["updates"])
    assert all(count > 0 for kind in ("bytes_down", "bytes_up") for count in end[kind])
    assert end["bytes_server"] > 0
    assert end["loss"] != start["loss"]
    assert first.summary["method_title"] == brisk(name).title
    assert all(torch.isfinite(tensor).all() for tensor in first.model.values())
    whole = name in ("fedavg", "fedasync")
    assert start["density"] == ([1.0] * 5 if whole else [1.0, 0.5, 0.2, 0.1, 0.05])
    restored = sum(end["level"]) > sum(start["level"])
    assert restored == (brisk(name).restoration is not None)
    assert all(now >= before for now, before in zip(end["level"], start["level"], strict=True))


@pytest.mark.parametrize("validation", ["server", "clients"])
@pytest.mark.parametrize("name", PAPER)
def test_every_model_of_a_run_is_the_one_that_was_tested(name: str, validation: str) -> None:
    """Batch norm's statistics are in it, whoever has the samples to rebuild them from."""
    task = tiny.normed()
    result = run_of(name, seconds=400.0, evaluation={"validation": validation})
    last = result.history[-1]
    tested = {"merged": last, **last.get("views", {})}
    assert list(tested) == result.views.names
    assert (len(tested) == 6) == (name not in ("fedavg", "fedasync"))
    inputs, targets = task.test[:]
    net = task.model()
    for view, measured in tested.items():
        net.load_state_dict(result.views.state(view))
        with torch.no_grad():
            outputs = net.eval()(inputs)
        assert task.loss(outputs, targets).item() == pytest.approx(measured["loss"], rel=1e-5)
    best = result.views.state(result.summary["best_view"])
    assert all(torch.equal(result.model[key], best[key]) for key in best)
    if validation == "clients":
        assert result.summary["best_view"] == "merged"


def test_the_methods_differ() -> None:
    """Otherwise a name that fell back to another method would pass all of the above."""

    def end(name: str, rules: dict[str, Any], **span: Any) -> bytes:
        run = objects(tiny.normed(), name, rules, seconds=span.pop("seconds", 3000.0))
        return bits(drive(run, **span)[-1].model)

    layerwise = {"ranking": {"scope": "layerwise"}, "local": {"scope": "layerwise"}}
    ends = [end(name, {}, ticks=2) for name in PAPER]
    ends += [end("fiarse", layerwise, ticks=2), end("fjord", {"local": {"distillation": True}}, ticks=2)]
    assert len(set(ends)) == len(ends)
    # What the ablations lack shows when clients have been restored and come late.
    pace = {"interval": 1, "restoration": {"patience": 1}}
    ablations = [end(f"fedgmr{part}", pace, seconds=400.0) for part in ("", "_without_asynchrony", "_without_buffer")]
    ablations.append(end("fedgmr_without_restoration", {"interval": 1}, seconds=400.0))
    assert len(set(ablations)) == 4


def charged(run: Assembly, dispatches: list[int]) -> tuple[list[int], list[int]]:
    """Values down and up by client if nothing but values and statistics travels, one object per task."""
    server, buffers = run.server, run.server.layout.buffer_size
    sizes = [server.levels.sizes[level] for level in server.client_levels]
    down = [count * values_bytes(size, buffers) for count, size in zip(dispatches, sizes, strict=True)]
    up = [count * update_bytes(size, buffers) for count, size in zip(server.updates, sizes, strict=True)]
    return down, up


@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "fiarse", "fedavg", "fjord"])
def test_width_methods_charge_no_level_map(name: str) -> None:
    # Without batch norm, whose statistics are a matter of their own.
    run = objects(tiny.dense(), name, {"ladder": [0.1, 0.2, 0.5, 1.0]}, links=[*LINKS[:4], replace(LINKS[3], up=0.3)])
    rounds = 5
    drive(run, ticks=rounds)
    down, up = charged(run, [rounds + 1] * 5)  # the next round's tasks are on their way
    assert run.server.updates == [rounds] * 5
    assert run.fleet.bytes_up == up
    if name == "fiarse":
        # A new map every round, also for who holds everything: it gives the order of the values.
        levels = run.server.levels
        maps = [
            (rounds + 1) * map_bytes(levels.increments, total=len(levels), first=0, last=level)
            for level in run.server.client_levels
        ]
        assert run.fleet.bytes_down == [values + extra for values, extra in zip(down, maps, strict=True)]
        assert min(maps) > 0
    else:
        assert run.fleet.bytes_down == down
    assert run.server.levels.implied == (name != "fiarse")
    assert run.fleet.bytes_server == sum(run.fleet.bytes_down)  # without IMS every client's object crosses


@pytest.mark.parametrize("name", [*SUB_MODEL, *VARIANTS[1::2]])
def test_a_run_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    rules = {"interval": 3, "restoration": {"patience": 1}} if name.endswith("+gmr") else {}
    settings: dict[str, Any] = {"seconds": 220.0, "participation": {"fraction": 0.8}}
    whole = objects(tiny.dropped(), name, rules, **settings)

    def save() -> None:
        if whole.server.tick == 4:
            Checkpoint.of(whole.server, whole.fleet, recorded=0).write(tmp_path, keep=1)

    drive(whole, watch=save)
    resumed = objects(tiny.dropped(), name, rules, **settings)
    assert load_checkpoint(tmp_path, resumed.server, resumed.fleet) == 0
    assert resumed.server.tick == 4
    federate(resumed.server, resumed.fleet, seconds=220.0, resumed=True)
    assert resumed.server.tick == whole.server.tick > 5
    assert same(resumed.server.model, whole.server.model)
    assert same(resumed.server.buffers, whole.server.buffers)
    assert resumed.fleet.state() == whole.fleet.state()
