"""A result: the same from `simulate` and from its directory, as a table, a figure, a directory, a client's module."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import tiny
from e2e.recipes import FLEET

import fedgmr
from fedgmr.experiments.seal import verify_run
from fedgmr.pages.report import write_report
from fedgmr.reporting.history import History

LINKS = [fedgmr.Link(**link) for link in FLEET["links"]]
BRISK = fedgmr.named_method("fedgmr", {"interval": 3, "restoration": {"patience": 1}})


def run(output: Path | None = None, *, method: Any = BRISK, seconds: float = 60.0) -> fedgmr.Result:
    return fedgmr.simulate(
        tiny.dropped(seed=3),
        method=method,
        fleet=fedgmr.FleetSettings(name="custom", links=tuple(LINKS), scale=1e-4),
        seconds=seconds,
        seed=3,
        evaluation={"every_seconds": 10.0},
        output=output,
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "run"


@pytest.fixture(scope="module")
def live(directory: Path) -> fedgmr.Result:
    return run(directory)


def same(first: fedgmr.Result, second: fedgmr.Result) -> bool:
    return (
        list(first.history) == list(second.history)
        and json.loads(json.dumps(first.summary)) == second.summary
        and first.recipe == second.recipe
        and first.recipe_text == second.recipe_text
        and first.model.keys() == second.model.keys()
        and all(torch.equal(first.model[name], second.model[name]) for name in first.model)
        and first.views is not None
        and second.views is not None
        and first.views.names == second.views.names
    )


def test_load_gives_what_simulate_gave(live: fedgmr.Result, directory: Path) -> None:
    loaded = fedgmr.load(directory)
    assert same(live, loaded)
    assert loaded.path == directory
    assert type(loaded.history) is type(live.history) is History
    assert loaded.final_accuracy == live.final_accuracy
    assert loaded.accuracy_at(35.0) == live.accuracy_at(35.0)


@pytest.mark.parametrize("method", ["fedgmr", "fedavg", "heterofl"])
def test_a_saved_result_is_a_run_directory(method: str, tmp_path: Path) -> None:
    result = run(method=method, seconds=40.0)
    saved = result.save(tmp_path / "saved")
    assert verify_run(saved) == f"finished, {len(result.history)} rows"
    loaded = fedgmr.load(saved)
    again = fedgmr.load(loaded.save(tmp_path / "again"))
    digest = result.summary | {"recipe_digest": loaded.summary["recipe_digest"]}  # of a file, which memory has not
    assert digest == json.loads(json.dumps(digest)) == loaded.summary == again.summary
    assert (tmp_path / "again" / "recipe.yaml").read_bytes() == (saved / "recipe.yaml").read_bytes()
    assert all(torch.equal(result.model[name], again.model[name]) for name in result.model)
    assert ("# Widths" in result.recipe_text) == (method == "heterofl")
    if method == "fedavg":
        assert write_report(saved).is_file()


def test_a_client_is_handed_its_levels_sub_model(live: fedgmr.Result, directory: Path) -> None:
    loaded = fedgmr.load(directory, task=tiny.dropped(seed=3))
    assert live.views is not None
    levels, inputs = live.history[-1]["level"], tiny.dropped(seed=3).test.inputs
    assert min(levels) < max(levels) == 4, "small and whole sub-models"
    for client, level in enumerate(levels):
        name = live.view_for(client)
        assert name == ("merged" if level == 4 else f"level {BRISK.ladder[level]:g}")
        module = live.model_for(client)
        assert not module.training
        kept = sum(int((tensor != 0).sum()) for tensor in module.parameters())
        total = sum(tensor.numel() for tensor in module.parameters())
        # Of the weights (144 + 576) the ladder's share is kept, of the other 52 parameters all that are not zero.
        assert kept <= total - 720 + 720 * BRISK.ladder[level] + 2
        assert torch.equal(module(inputs), loaded.model_for(client)(inputs))
        correct = (module(inputs).argmax(1) == tiny.dropped(seed=3).test.targets).double().mean().item()
        row = live.history[-1]
        recorded = row["accuracy"] if name == "merged" else row["views"][name]["accuracy"]
        assert correct == pytest.approx(recorded, abs=1e-6)
    with pytest.raises(ValueError, match="client is 5: give a number from 0 to 4"):
        live.model_for(5)


def test_the_task_of_a_loaded_run_is_found_by_its_name_or_given(directory: Path, live: fedgmr.Result) -> None:
    with pytest.raises(ValueError, match=r"task.name is 'dropped'.* give it again as task"):
        fedgmr.load(directory).model_for(0)


def test_a_history_becomes_flat_tables(live: fedgmr.Result) -> None:
    rows, last = live.history.table(), live.history[-1]
    assert [row["seconds"] for row in rows] == live.history["seconds"]
    assert rows[-1]["views.padded.accuracy"] == last["views"]["padded"]["accuracy"]
    assert "density" not in rows[-1]
    clients = live.history.client_table()
    assert len(clients) == 5 * len(rows)
    assert clients[-2] == {"seconds": 60.0, "tick": last["tick"], "client": 3} | {
        name: last[name][3]
        for name in ("density", "level", "staleness", "updates", "bytes_down", "bytes_up", "checks_left")
    }
    with pytest.raises(KeyError, match="'acuracy' is not a field of every row"):
        live.history["acuracy"]


def test_a_frame_is_the_table(live: fedgmr.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    frame = live.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["accuracy"].tolist() == live.history["accuracy"]
    assert len(live.frame(clients=True)) == 5 * len(frame)

    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"pandas, which is not installed: install it \(pip install pandas\)"):
        live.frame()


def test_figures_are_those_of_the_report(live: fedgmr.Result) -> None:
    axes = live.plot().axes[0]
    assert axes.lines[0].get_xdata().tolist() == live.history["seconds"]  # type: ignore[union-attr]
    assert [live.plot(name).axes[0].get_title(loc="left")[:4] for name in ("density", "bytes")] == ["Dens", "Data"]
    with pytest.raises(ValueError, match="figure is 'acuracy': did you mean accuracy"):
        live.plot("acuracy")


def test_what_a_notebook_shows_is_short(live: fedgmr.Result, directory: Path) -> None:
    accuracy = f"{100 * live.final_accuracy:.2f} %"
    assert repr(live) == f"Result(FedGMR on dropped: finished, accuracy {accuracy} after 60 s, {str(directory)!r})"
    assert repr(tiny.dropped()) == "Task('dropped', 240 training and 96 test samples)"
    assert repr(fedgmr.named_method("fedavg")).startswith("Method(")
    assert "admission" not in repr(BRISK), "which has its default"
    assert eval(repr(fedgmr.named_method("fedavg")), _names()) == fedgmr.named_method("fedavg")
    assert len(repr(live.recipe)) < 1200
    assert repr(live.history).startswith("History(4 evaluations, 5 clients, fields: seconds, tick")
    many = fedgmr.FleetSettings(name="custom", links=tuple(LINKS) * 100)
    assert "... 500 in all" in repr(fedgmr.recipe.Recipe(**_fields(live.recipe) | {"fleet": many}))  # type: ignore[attr-defined]


def _fields(recipe: Any) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in recipe.__dataclass_fields__}


def _names() -> dict[str, Any]:
    from fedgmr.methods import method
    from fedgmr.server import rules

    return {**vars(rules), **vars(method)}


def test_an_unfinished_run_is_loaded_without_models(live: fedgmr.Result, tmp_path: Path) -> None:
    unfinished = tmp_path / "run"
    saved = live.save(unfinished)
    for name in ("summary.json", "model.safetensors", "views.safetensors"):
        (saved / name).unlink()
    loaded = fedgmr.load(saved)
    assert (loaded.status, loaded.summary, len(loaded.history)) == ("unfinished", {}, len(live.history))
    with pytest.raises(ValueError, match="is unfinished and has no final model: resume or repeat it"):
        _ = loaded.model
    again = loaded.save(tmp_path / "again")
    assert verify_run(again) == verify_run(saved) == f"unfinished, {len(live.history)} rows"
