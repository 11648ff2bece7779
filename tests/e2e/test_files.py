"""Models and checkpoints are safetensors files; a damaged checkpoint is noticed."""

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from e2e import tiny
from e2e.command import Command, write_recipe
from e2e.crash import die_at
from e2e.recipes import RECIPES
from fedgmr.experiments.checkpoint import Checkpoint, load_checkpoint


def test_the_library_reads_the_model(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", RECIPES["fedgmr"])
    assert fedgmr("run", "r.json", "output=run").code == 0
    run = fedgmr.folder / "run"
    tensors = load_file(run / "model.safetensors")
    task = tiny.dropped(seed=3)
    net = task.initial_model(0).eval()
    missing, unexpected = net.load_state_dict(tensors, strict=False)
    assert unexpected == []
    assert all(name.endswith("num_batches_tracked") for name in missing)
    with torch.no_grad():
        hits = (net(task.test.inputs).argmax(-1) == task.test.targets).double().mean()
    summary = json.loads((run / "summary.json").read_text())
    assert float(hits) == pytest.approx(summary["final_accuracy"], abs=1e-12)
    assert summary["final_accuracy"] > 0.4  # of four classes


@pytest.fixture
def checkpoint(fedgmr: Command) -> Path:
    write_recipe(fedgmr.folder / "r.json", RECIPES["fedgmr"])
    die = partial(die_at, "replaced", "checkpoints", 5)
    assert fedgmr("run", "r.json", "output=run", before=die).code == -9
    return sorted((fedgmr.folder / "run" / "checkpoints").glob("tick-*"))[-1]


def test_a_checkpoint_is_a_safetensors_file(checkpoint: Path) -> None:
    tensors = load_file(checkpoint)
    with safe_open(checkpoint, "pt") as file:
        state = json.loads(file.metadata()["state"])
    assert tensors["model"].dtype == torch.float32
    assert any(name.startswith("levels.") and tensor.dtype == torch.uint8 for name, tensor in tensors.items())
    assert state["server"]["tick"] == int(checkpoint.stem.partition("-")[2])


def test_a_checkpoint_of_an_earlier_release_is_read(checkpoint: Path, fedgmr: Command) -> None:
    """It has its version and a checksum of another kind beside the state."""
    with safe_open(checkpoint, "pt") as file:
        state = json.loads(file.metadata()["state"])
    del state["digest"], state["schema_version"]
    metadata = {"schema_version": "1", "state": json.dumps(state), "checksum": "0" * 32}
    save_file(load_file(checkpoint), checkpoint, metadata)
    for other in checkpoint.parent.glob("tick-*"):
        if other != checkpoint:
            other.unlink()
    ended = fedgmr("resume", "run")
    assert (ended.code, "warning" in ended.err) == (0, False), ended.err
    assert fedgmr("run", "r.json", "output=whole").code == 0
    models = [(fedgmr.folder / run / "model.safetensors").read_bytes() for run in ("run", "whole")]
    assert models[0] == models[1]


class Keeper:
    """A server with nothing but the state that is saved, and its fleet."""

    tick = 12
    dispatched: ClassVar[dict[int, Any]] = {}

    def __init__(self) -> None:
        self.tensors = {
            "a": torch.arange(6, dtype=torch.float32).view(2, 3),
            "b": torch.tensor([1, 2, 255], dtype=torch.uint8),
            "c": torch.tensor(-0.0, dtype=torch.float64),
            "empty": torch.empty(0, dtype=torch.int64),
            "half": torch.tensor([1.5], dtype=torch.float16),
            "brain": torch.tensor([1.5, -3e38], dtype=torch.bfloat16),
        }
        self.tensors["strided"] = self.tensors["a"].t()
        self.tensors["again"] = self.tensors["a"]
        self.fleet = KeptFleet()
        self.found: list[Any] = []

    def state(self) -> Any:
        return self.tensors, {"tick": 12}

    def restore(self, *found: Any) -> None:
        self.found.append(found)


class KeptFleet:
    """A fleet with nothing but the state that is saved."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.memories: dict[int, torch.Tensor] = {}

    def state(self) -> Any:
        return {"now": 3.25, "note": "é"}

    def restore(self, *found: Any, tick: int) -> None:
        self.found.append((*found, tick))


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    monkeypatch.setattr("fedgmr.experiments.checkpoint.save_state", Keeper.state)
    monkeypatch.setattr("fedgmr.experiments.checkpoint.restore_state", Keeper.restore)
    return Keeper()


def test_tensors_of_every_type_come_back(tmp_path: Path, keeper: Any) -> None:
    Checkpoint.of(keeper, keeper.fleet, recorded=3).write(tmp_path, keep=1)
    assert load_checkpoint(tmp_path, keeper, keeper.fleet) == 3
    ((tensors, state),) = keeper.found
    assert state == {"tick": 12}
    assert keeper.fleet.found == [(keeper.fleet.state(), keeper.dispatched, keeper.tick)]
    assert set(tensors) == set(keeper.tensors)
    for name, tensor in keeper.tensors.items():
        assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape)
        assert _bytes(tensors[name]) == _bytes(tensor)


def test_drafts_of_killed_processes_go_with_the_next_checkpoint(tmp_path: Path, keeper: Any) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in (".tick-000000011.safetensors.7-7.tmp", ".tmpOFx4Wh"):  # ours, and the draft that safetensors writes
        (folder / name).write_bytes(b"half")
    Checkpoint.of(keeper, keeper.fleet, recorded=3).write(tmp_path, keep=1)
    assert [path.name for path in folder.iterdir()] == ["tick-000000012.safetensors"]


def _bytes(tensor: torch.Tensor) -> bytes:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()


def test_any_flipped_bit_is_seen_or_harmless(tmp_path: Path, keeper: Any) -> None:
    keeper.tensors = {
        "weights": torch.arange(5, dtype=torch.float32),
        "levels": torch.tensor([0, 1], dtype=torch.uint8),
    }
    Checkpoint.of(keeper, keeper.fleet, recorded=3).write(tmp_path, keep=1)
    (path,) = (tmp_path / "checkpoints").iterdir()
    whole = path.read_bytes()
    load_checkpoint(tmp_path, keeper, keeper.fleet)
    ((expected, state),), fleet = keeper.found, keeper.fleet.found
    refused = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(np.random.default_rng(position).integers(8))
        path.write_bytes(damaged)
        keeper.found, keeper.fleet.found = [], []
        try:
            with warnings.catch_warnings(action="ignore"):
                assert load_checkpoint(tmp_path, keeper, keeper.fleet) == 3
        except ValueError:
            refused += 1
            continue
        ((tensors, found),) = keeper.found
        assert (found, keeper.fleet.found) == (state, fleet)
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert refused > 0.9 * len(whole)
