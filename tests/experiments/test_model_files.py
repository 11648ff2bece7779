"""Models as files: chosen by view, level or client, opened without this package, as good as the run has reported."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import tiny
from e2e.recipes import recipe
from equivalence import zoo
from equivalence.test_zoo import LADDER, LINKS, task
from safetensors.torch import load_file

import fedgmr
from fedgmr.cli.main import main
from fedgmr.experiments.model_files import exported_program, write_model
from fedgmr.experiments.run import run_recipe
from fedgmr.files import MODEL, VIEWS
from fedgmr.recipe import recipe_from

# The user's own program: the class, the samples, and no fedgmr.
OPENED = """
import json, sys
sys.modules["fedgmr"] = None  # an import of it fails
import torch
from safetensors.torch import load_file
from torch import nn

inputs, targets = torch.load("samples.pt")

def evaluated(model):
    with torch.no_grad():
        outputs = model(inputs)
    right = (outputs.argmax(1) == targets).double().mean()
    return [float(right), float(nn.functional.cross_entropy(outputs, targets))]

def own(state):
    convolution = (nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(*convolution, nn.Dropout(0.0), nn.Linear(144, 4)).eval()
    model.load_state_dict(state)
    return model

def opened(stem):
    models = (own(torch.load(stem + ".pt")), own(load_file(stem + ".safetensors")))
    return [evaluated(model) for model in (*models, torch.export.load(stem + ".pt2").module())]

print(json.dumps({stem: opened(stem) for stem in sys.argv[1:]}))
"""


def last(run: Path) -> dict[str, Any]:
    """The last row of a run."""
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])  # type: ignore[no-any-return]


def simulate(own: fedgmr.Task, method: str) -> fedgmr.Result:
    return fedgmr.simulate(
        own,
        method=fedgmr.named_method(method, {"ladder": LADDER}),
        fleet={"name": "custom", "links": LINKS},
        seconds=3.0,
        training={"learning_rate": 0.05, "batch_size": 8, "steps": 2},
        evaluation={"every_seconds": 3.0},
        device="cpu",
    )


def test_plain_torch_opens_every_file_and_finds_the_reported_metrics(tmp_path: Path) -> None:
    methods = ("fedgmr", "heterofl")
    suffixes = {"state_dict": "pt", "safetensors": "safetensors", "torch.export": "pt2"}
    torch.save(tiny.normed(3).test[:], tmp_path / "samples.pt")
    for method in methods:
        run_recipe(recipe_from(recipe("normed", method, seconds=120.0)), tmp_path / f"{method} run")
        for to, suffix in suffixes.items():
            place = ["--output", str(tmp_path / f"{method}.{suffix}")]
            assert main(["model", str(tmp_path / f"{method} run"), "--level", "0.2", "--to", to, *place]) == 0
    command = [sys.executable, "-c", OPENED, *methods]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    for method, found in json.loads(done.stdout).items():
        reported = last(tmp_path / f"{method} run")["views"]["level 0.2"]
        for each in found:
            assert each == pytest.approx([reported["accuracy"], reported["loss"]], abs=1e-6)
    # A channel has 9 weights, a bias and four numbers of batch norm, and 9 · 4 weights of the linear layer; beside them
    # there are its 4 biases and batch norm's count. HeteroFL's small network has three of the sixteen channels.
    for method, channels in zip(methods, (16, 3), strict=True):
        held = torch.export.load(tmp_path / f"{method}.pt2").state_dict.values()
        assert sum(tensor.numel() for tensor in held) == channels * (9 + 1 + 4 + 9 * 4) + 4 + 1


@pytest.mark.parametrize(("name", "method"), [("resnet", "fedrolex"), ("gru", "fjord"), ("tied_embeddings", "fiarse")])
def test_ordinary_architectures_are_as_good_as_reported(name: str, method: str, tmp_path: Path) -> None:
    own = task(name)
    result = simulate(own, method)
    row = result.history[-1]
    assert result.final_views.names == ["merged", "padded", "level 0.2", "level 0.5"]
    for view in result.final_views.names:
        model = zoo.ZOO[name]().eval()
        model.load_state_dict(torch.load(write_model(result, view, "state_dict", tmp_path / "state")))
        models = [model]
        if view == "level 0.2":
            models.append(torch.export.load(write_model(result, view, "torch.export", tmp_path / "program")).module())
        for each in models:
            with torch.no_grad():
                loss = torch.nn.functional.cross_entropy(each(own.test.inputs), own.test.targets)
            assert float(loss) == pytest.approx((row if view == "merged" else row["views"][view])["loss"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.ZOO)
@pytest.mark.parametrize("method", ["fedgmr", "heterofl"])
@pytest.mark.filterwarnings("ignore:The view")
def test_every_program_is_as_good_as_reported(name: str, method: str) -> None:
    own = task(name)
    result = simulate(own, method)
    row = result.history[-1]
    for view, reported in {"merged": row, **row["views"]}.items():
        with torch.no_grad():
            outputs = exported_program(result, view).module()(own.test.inputs)
        right = (outputs.argmax(1) == own.test.targets).double().mean()
        loss = torch.nn.functional.cross_entropy(outputs, own.test.targets)
        assert [float(right), float(loss)] == pytest.approx([reported["accuracy"], reported["loss"]], abs=1e-6)


class Both(torch.nn.Module):
    """Numbers and words to three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.words = torch.nn.Linear(4, 32), torch.nn.Embedding(7, 32)
        self.head = torch.nn.Linear(32, 3)

    def forward(self, numbers: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.numbers(numbers) + self.words(words)))


def test_inputs_by_name_stay_so(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    inputs = {"numbers": torch.randn(60, 4, generator=draw), "words": torch.randint(7, (60,), generator=draw)}
    samples = inputs, torch.randint(3, (60,), generator=draw)
    result = simulate(fedgmr.Task(name="both", model=Both, train=samples, test=samples), "heterofl")
    program = torch.export.load(write_model(result, "level 0.2", "torch.export", tmp_path / "program")).module()
    assert torch.allclose(program(**inputs), result.module("level 0.2")(**inputs), atol=1e-6)


def test_a_layer_norm_keeps_the_full_width_and_says_so() -> None:
    result = simulate(task("bert"), "heterofl")
    with pytest.warns(UserWarning, match="full width, with zeros"):
        program = exported_program(result, "level 0.2")
    assert program.state_dict["classifier.weight"].shape == (zoo.CLASSES, 16)


def test_models_by_view_level_and_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    summary = run_recipe(recipe_from(recipe("normed", "heterofl", seconds=120.0)), run).summary
    assert main(["model", str(run)]) == 0
    names = ["merged", "padded", "level 0.05", "level 0.1", "level 0.2", "level 0.5"]
    best = summary["best_view"]
    assert capsys.readouterr().out.splitlines() == [f"{name} (the best)" if name == best else name for name in names]

    def written(*words: str) -> bytes:
        path = tmp_path / "model"
        assert main(["model", str(run), *words, "--to", "safetensors", "--output", str(path)]) == 0
        return path.read_bytes()

    assert written() == (run / MODEL).read_bytes()
    assert last(run)["density"] == [1.0, 0.5, 0.2, 0.1, 0.05]  # HeteroFL's clients stay
    assert written("--client", "0") == written("--level", "1") == written("--view", "merged")
    assert written("--client", "3") == written("--level", "0.1") == written("--view", "level 0.1")
    assert main(["model", str(run), "--client", "4", "--to", "safetensors"]) == 0
    state = load_file(run / "level-0.05.safetensors")
    assert 0 < int((state["0.weight"] != 0).sum()) < state["0.weight"].numel()
    for words in (["--client", "5"], ["--level", "0.3"], ["--view", "level 0.3"]):
        assert main(["model", str(run), *words, "--to", "state_dict"]) == 2
    assert main(["model", str(tmp_path)]) == 2
    (run / VIEWS).unlink()
    assert main(["model", str(run), "--view", "level 0.1", "--to", "state_dict"]) == 2, "the best is all there is"
    assert main(["model", str(run), "--to", "state_dict"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_with_one_model_hands_it_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run_recipe(recipe_from(recipe("dense", "fedavg", seconds=100.0)), run)
    assert main(["model", str(run)]) == 0
    assert capsys.readouterr().out == "merged (the best)\n"
    assert main(["model", str(run), "--client", "2", "--to", "safetensors"]) == 0
    assert (run / "merged.safetensors").read_bytes() == (run / MODEL).read_bytes()
    assert main(["model", str(run), "--level", "0.5", "--to", "safetensors"]) == 2
    (run / MODEL).write_bytes(b"nonsense")
    assert main(["model", str(run)]) == 2
    assert "Traceback" not in capsys.readouterr().err
