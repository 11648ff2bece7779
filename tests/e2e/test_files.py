"""Models and checkpoints are safetensors files: the library of that name reads them, and we read the library's."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from e2e import tiny
from e2e.command import Command, write_recipe
from e2e.crash import die_at
from e2e.recipes import RECIPES
from fedgmr.experiments.tensorfile import read_tensors, write_tensors


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
        hits = (net(task.test[0]).argmax(-1) == task.test[1]).double().mean()
    summary = json.loads((run / "summary.json").read_text())
    assert float(hits) == pytest.approx(summary["final_accuracy"], abs=1e-12)
    assert summary["final_accuracy"] > 0.4  # of four classes


def test_the_library_reads_a_checkpoint(fedgmr: Command) -> None:
    write_recipe(fedgmr.folder / "r.json", RECIPES["fedgmr"])
    die = partial(die_at, "replaced", "checkpoints", 5)
    assert fedgmr("run", "r.json", "output=run", before=die).code == -9
    newest = sorted((fedgmr.folder / "run" / "checkpoints").glob("tick-*"))[-1]
    ours, metadata = read_tensors(newest)
    with safe_open(newest, "pt") as file:
        assert set(file.keys()) == set(ours)
        assert all(torch.equal(file.get_tensor(name), ours[name]) for name in ours)
        assert json.loads(file.metadata()["state"]) == json.loads(metadata["state"])
    assert ours["model"].dtype == torch.float32
    assert any(name.startswith("levels.") and tensor.dtype == torch.uint8 for name, tensor in ours.items())


TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.tensor([1, 2, 255], dtype=torch.uint8),
    "c": torch.tensor(-0.0, dtype=torch.float64),
    "empty": torch.empty(0, dtype=torch.int64),
    "half": torch.tensor([1.5], dtype=torch.float16),
    "brain": torch.tensor([1.5, -3e38], dtype=torch.bfloat16),
    "strided": torch.arange(6, dtype=torch.float32).view(2, 3).t(),
}


def test_each_reads_what_the_other_writes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "ours", TENSORS, {"note": "é"})
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, tmp_path / "theirs", {"note": "é"})
    for name in ("ours", "theirs"):
        tensors, metadata = read_tensors(tmp_path / name)
        library = load_file(tmp_path / name)
        assert metadata["note"] == "é"
        for key, tensor in TENSORS.items():
            assert tensors[key].dtype == library[key].dtype == tensor.dtype
            assert tensors[key].shape == library[key].shape == tensor.shape
            assert _bytes(tensors[key]) == _bytes(library[key])
            assert torch.equal(tensors[key], tensor)


def _bytes(tensor: torch.Tensor) -> bytes:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()


def test_any_flipped_bit_is_seen_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tensors = {"weights": torch.arange(5, dtype=torch.float32), "levels": torch.tensor([0, 1], dtype=torch.uint8)}
    write_tensors(path, tensors, {"state": json.dumps({"tick": 12, "now": 3.25})})
    whole = path.read_bytes()
    expected = read_tensors(path)
    refused = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(np.random.default_rng(position).integers(8))
        path.write_bytes(damaged)
        try:
            found, metadata = read_tensors(path)
        except ValueError:
            refused += 1
            continue
        assert metadata["state"] == expected[1]["state"]
        assert all(torch.equal(found[name], expected[0][name]) for name in expected[0])
    assert refused > 0.9 * len(whole)
