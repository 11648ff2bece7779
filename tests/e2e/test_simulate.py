"""`fedgmr.simulate` in Python and `fedgmr run` on the command line are the same run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedgmr as library
from e2e import tiny
from e2e.command import Command, write_recipe
from e2e.recipes import FLEET, recipe
from fedgmr.reporting import read_run

SETTINGS: dict[str, Any] = {
    "seconds": 300.0,
    "seed": 3,
    "training": {"learning_rate": 0.1, "batch_size": 10, "steps": 2},
    "evaluation": {"every_seconds": 40.0},
}
BRISK = library.named_method("fedgmr", {"interval": 3, "restoration": {"patience": 1}})
LINKS = [library.Link(**link) for link in FLEET["links"]]  # type: ignore[attr-defined]
CUSTOM = library.FleetSettings(name="custom", links=tuple(LINKS), scale=1e-4)


def _rows(history: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "wall"} for row in history]


def _simulate(task: Any = "e2e.tiny:dropped", **settings: Any) -> library.Result:
    return library.simulate(task, **{"method": BRISK, "fleet": CUSTOM, **SETTINGS, **settings})


@pytest.mark.parametrize("as_object", [True, False])
def test_python_and_command_line_agree(as_object: bool, fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", recipe("dropped", seconds=300.0))
    assert fedgmr("run", "r.json", "output=run").code == 0
    run = fedgmr.folder / "run"
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    result = _simulate(tiny.dropped(seed=3) if as_object else "e2e.tiny:dropped")
    assert _rows(result.history) == _rows(written)
    tensors = load_file(run / "model.safetensors")
    assert set(result.model) == set(tensors)
    assert all(torch.equal(result.model[name], tensors[name]) for name in tensors)
    assert result.final_accuracy == json.loads((run / "summary.json").read_text())["final_accuracy"]
    assert len(written) > 5
    assert written[-1]["accuracy"] != written[0]["accuracy"]


def test_a_result_is_a_table(fedgmr: Command) -> None:
    history = _simulate().history
    assert history["seconds"] == [row["seconds"] for row in history]
    assert history[-1]["seconds"] == 300.0
    assert history["seconds"] == sorted(history["seconds"])
    assert {"accuracy", "loss", "density", "bytes_up"} <= set(history.columns)


def test_save_writes_a_run_directory(tmp_path: Path, fedgmr: Command) -> None:
    result = _simulate()
    directory = result.save(tmp_path / "deep" / "saved")
    run = read_run(directory)
    assert run.status == "finished"
    assert run.title == "FedGMR"
    assert run.final_accuracy == result.final_accuracy
    assert np.array_equal(run.history.accuracy, result.history["accuracy"])
    assert np.array_equal(run.history.bytes_down, result.history["bytes_down"])
    tensors = load_file(directory / "model.safetensors")
    assert all(torch.equal(result.model[name], tensors[name]) for name in result.model)
    assert "is finished" in fedgmr("resume", str(directory)).refusal()
    with pytest.raises(ValueError, match="holds a run already"):
        result.save(directory)


def test_output_writes_the_same_directory(tmp_path: Path) -> None:
    result = _simulate(output=tmp_path / "run", checkpoint={"every": 2})
    saved = result.save(tmp_path / "saved")
    for name in ("recipe.yaml", "metrics.jsonl", "summary.json", "model.safetensors"):
        assert (saved / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_every_form_of_method_and_fleet() -> None:
    plain = _simulate(method="fedgmr", seconds=60.0)
    composed = _simulate(method=library.named_method("fedgmr"), seconds=60.0)
    assert _rows(plain.history) == _rows(composed.history)

    unscaled = library.FleetSettings(name="custom", links=tuple(LINKS))
    links, settings = (_simulate(fleet=fleet, seconds=2.0) for fleet in (LINKS, unscaled))
    assert _rows(links.history) == _rows(settings.history)
    assert len(links.history[0]["density"]) == 5

    named, same = (_simulate(fleet=fleet, seconds=2.0) for fleet in ("low", library.FleetSettings(name="low")))
    assert _rows(named.history) == _rows(same.history)
    assert named.history[0]["density"][:2] == [1.0, 1.0]
    assert named.summary["clients"] == 10


@pytest.mark.parametrize("method", ["fedavg", "fedasync", "fedgmr_without_restoration"])
def test_methods_by_name(method: str) -> None:
    result = _simulate(method=method)
    assert result.summary["method"] == method
    assert result.summary["ticks"] > 0


def test_a_watcher_sees_every_tick() -> None:
    class Ticks(library.Watcher):
        ticks: list[int] = []  # noqa: RUF012

        def after_tick(self, state: Any) -> None:
            self.ticks.append(state["tick"])

    result = _simulate(watcher=Ticks())
    assert Ticks.ticks == list(range(1, result.summary["ticks"] + 1))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "fedgrm"}, "did you mean fedgmr"),
        ({"fleet": "hihg"}, "fleet.name is 'hihg'"),
        ({"fleet": []}, "at least one client"),
        ({"seconds": 0.0}, "seconds is 0"),
        ({"trainig": {}}, "did you mean training"),
        ({"training": {"step": 3}}, "did you mean training.steps"),
        ({"task": "mnist"}, "did you mean mnist5k"),
    ],
)
def test_mistakes_are_told(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _simulate(**settings)
