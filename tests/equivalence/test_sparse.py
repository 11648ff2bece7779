"""Sparse training in whole runs against masked models, and how a run comes to it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from e2e import tiny
from torch import Tensor, nn

from equivalence.runs import BRISK, LINKS, distance, drive, objects
from fedgmr import Task
from fedgmr.experiments.assembly import Assembly, make_training
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.sparse.break_even import LayerWork
from fedgmr.training.sparse.cut import SparseCutter
from fedgmr.training.submodel.cut import MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.workspace import Workspace

# The level map as it is: a rounding must not move a coordinate to another level.
FROZEN = {"interval": 10_000, "restoration": {"patience": 1}}
SPARSE = {"sparse": 0.6, "sparse_from": 60}


def typed(task: Task, dtype: torch.dtype) -> Task:
    def cast(samples: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return samples[0].to(dtype), samples[1]

    return replace(task, model=lambda: task.model().to(dtype), train=cast(task.train[:]), test=cast(task.test[:]))


def deep(dtype: torch.dtype = torch.float64) -> Task:
    """Pictures for two linear layers behind a convolution."""

    def net() -> nn.Module:
        front = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        return nn.Sequential(*front, nn.Linear(72, 32), nn.Tanh(), nn.Linear(32, 4))

    return typed(replace(tiny.normed(), name="deep", model=net), dtype)


TASKS = {"deep": deep, "batch norm": lambda: typed(tiny.normed(), torch.float64)}


def executor(run: Assembly[Any]) -> SequentialExecutor:
    found = run.fleet.executor
    assert isinstance(found, SequentialExecutor)
    return found


def mask(run: Assembly[Any]) -> None:
    """Let the run train on plain masked models."""
    module = FlatModule(run.task.initial_model(0), run.server.layout, torch.device("cpu"))
    executor(run).workspace = Workspace(MaskedCutter(module), run.recipe.training.optimizer)


def pair(task: Task, method: str, rules: dict[str, Any], **sections: Any) -> tuple[Assembly[Any], Assembly[Any]]:
    """The same run twice, sparse and on plain masked models."""
    execution = SPARSE | {"executor": "sequential"} | sections.pop("execution", {})
    sparse, masked = (objects(task, method, rules, seconds=1e6, execution=execution, **sections) for _ in range(2))
    assert isinstance(executor(sparse).workspace.cutter, SparseCutter)
    mask(masked)
    return sparse, masked


def sparse_lengths(run: Assembly[Any]) -> set[int]:
    """How long the clients' vectors were at the levels that were sparse."""
    cuts = [cut for by_level in executor(run).workspace._cuts.values() for cut in by_level.values()]
    return {len(cut.module.flat) for cut in cuts if cut.coordinates is not None}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("method", ["fedgmr", "fedgmr_without_asynchrony", "fedgmr_without_buffer"])
def test_fifty_ticks(method: str, name: str) -> None:
    sparse, masked = pair(TASKS[name](), method, FROZEN)
    found, wanted = drive(sparse, ticks=50)[-1], drive(masked, ticks=50)[-1]
    assert distance(found.model, wanted.model) <= 1e-9
    assert found.updates == wanted.updates
    assert found.score[0] == wanted.score[0]
    assert len(sparse_lengths(sparse)) >= 3, "the levels of 5, 10, 20 and 50 % were sparse"


def test_fiarse_too() -> None:
    """A new map at every tick: a coordinate may change places with one of the same magnitude, so few ticks."""
    sparse, masked = pair(deep(), "fiarse", {})
    assert distance(drive(sparse, ticks=12)[-1].model, drive(masked, ticks=12)[-1].model) <= 1e-9


def test_restored_clients() -> None:
    sparse, masked = pair(deep(), "fedgmr", BRISK)
    found, wanted = drive(sparse, ticks=24)[-1], drive(masked, ticks=24)[-1]
    assert found.levels == wanted.levels
    assert sum(found.levels) > 10, "clients moved up"
    assert distance(found.model, wanted.model) <= 1e-9


def test_one_round_in_single_precision() -> None:
    task = deep(torch.float32)
    sparse, masked = pair(task, "fedgmr_without_asynchrony", FROZEN)
    assert distance(drive(sparse, ticks=1)[-1].model, drive(masked, ticks=1)[-1].model) <= 1e-5


def test_adam() -> None:
    training = {"learning_rate": 0.01, "batch_size": 10, "steps": 3, "optimizer": {"kind": "adam"}}
    sparse, masked = pair(deep(), "fedgmr", FROZEN, training=training)
    assert distance(drive(sparse, ticks=20)[-1].model, drive(masked, ticks=20)[-1].model) <= 1e-9


def test_clients_that_validate() -> None:
    sparse, masked = pair(deep(), "fedgmr", BRISK, evaluation={"validation": "clients"})
    found, wanted = drive(sparse, ticks=15)[-1], drive(masked, ticks=15)[-1]
    assert found.levels == wanted.levels
    assert distance(found.model, wanted.model) <= 1e-9


def test_small_nets_stay_dense_without_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> float:
        raise AssertionError("probed")

    monkeypatch.setattr(LayerWork, "break_even", fail)
    run, wanted = (objects(tiny.normed(), execution={"executor": "sequential"}) for _ in range(2))
    assert run.recipe.execution.sparse == 0
    mask(wanted)
    assert [moment.learned() for moment in drive(run, ticks=8)] == [m.learned() for m in drive(wanted, ticks=8)]


def test_auto_is_measured_and_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = list[LayerWork]()

    def measure(work: LayerWork, *, steps: int, dtype: torch.dtype) -> float:
        probed.append(work)
        assert (steps, dtype) == (3, torch.float64)
        return 0.15

    monkeypatch.setattr(LayerWork, "break_even", measure)
    run = objects(deep(), execution={"sparse_from": 100})
    assert probed == [LayerWork(outputs=32, inputs=72, rows=10)]  # the larger of two, ten samples in a batch
    assert (run.recipe.execution.sparse, run.recipe.execution.sparse_from) == (0.15, 100)
    for method in ("fedavg", "heterofl"):
        assert objects(deep(), method, execution={"sparse_from": 100}).recipe.execution.sparse == 0
    assert objects(deep(), execution={"sparse_from": 100, "autocast": "bfloat16"}).recipe.execution.sparse == 0
    assert objects(deep(), execution={"sparse_from": 100, "sparse": 0.3}).recipe.execution.sparse == 0.3
    assert len(probed) == 1


def test_a_client_that_was_told_nothing_takes_a_safe_density() -> None:
    run = objects(deep(), execution={"sparse": "auto"})
    execution = replace(run.recipe.execution, sparse="auto", sparse_from=1000)
    parts = executor(run).work.order.parts
    training = make_training(replace(run.recipe, execution=execution), run.task, run.server.layout, None, parts, None)
    cutter = training.workspace().cutter
    assert isinstance(cutter, SparseCutter)
    assert cutter._at_most == {"4.weight": int(0.12 * 72 * 32)}


def test_links_cover_the_ladder() -> None:
    assert {link.density for link in LINKS} == {0.05, 0.1, 0.2, 0.5, 1.0}


def test_the_probe_leaves_pytorchs_generator_alone() -> None:
    before = torch.default_generator.get_state()
    assert objects(deep(), execution={"sparse_from": 100}).recipe.execution.sparse != "auto"
    assert torch.equal(torch.default_generator.get_state(), before)
