"""ONNX files, read back by onnxruntime: any batch, small networks, the reported loss. See `make test-extras`."""

import json
from pathlib import Path

import pytest
import torch
from e2e import tiny
from e2e.recipes import recipe

from fedgmr.cli.main import main
from fedgmr.experiments.run import run_recipe
from fedgmr.recipe import recipe_from


def test_onnxruntime_finds_the_reported_metrics(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run = tmp_path / "run"
    run_recipe(recipe_from(recipe("normed", "heterofl", seconds=200.0)), run)
    views = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["views"]
    inputs, targets = tiny.normed(3).test[:]
    sizes = []
    for density in ("0.2", "0.5"):
        assert main(["model", str(run), "--level", density, "--to", "onnx"]) == 0
        file = run / f"level-{density}.onnx"
        session = runtime.InferenceSession(str(file))
        (name,) = (given.name for given in session.get_inputs())
        for count in (1, len(inputs)):
            (outputs,) = session.run(None, {name: inputs[:count].numpy()})
            assert outputs.shape == (count, 4)
        loss = torch.nn.functional.cross_entropy(torch.from_numpy(outputs), targets)
        assert float(loss) == pytest.approx(views[f"level {density}"]["loss"], abs=1e-6)
        sizes.append(file.stat().st_size)
    assert sizes[0] < sizes[1]


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(recipe_from(recipe("dense", "fedavg", seconds=50.0)), tmp_path / "run")
    monkeypatch.setattr("fedgmr.experiments.model_files.find_spec", lambda name: None)
    assert main(["model", str(tmp_path / "run"), "--to", "onnx"]) == 2
    assert "onnx and onnxscript must be installed" in capsys.readouterr().err
