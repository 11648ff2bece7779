"""Captured steps done again for other tasks, against the same steps done anew; on any device, by `captured.py`."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from e2e import tiny
from equivalence.runs import objects
from equivalence.test_graphed import COARSE, FROZEN, HEAVY, TASKS, Slots, training_of
from torch import Tensor, nn

from fedgmr import Task
from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.assembly import Assembly
from fedgmr.training.graphed import slot
from fedgmr.training.stacked.executor import StackedExecutor
from training.captured import Graph, Stream, emulated
from training.test_folded import ADAM, Residual, folded, net_of, residual, sequences
from training.test_stacked import DEVICE, RUNS, objects_of, pictures, stacked

if RUNS.args[0] is False:
    from fedgmr.training.folded.net import FoldedNet

INTERPRETED = pytest.mark.skipif(RUNS.args[0] or DEVICE != "cpu", reason="needs Triton's interpreter")
Train = Callable[[Sequence[ClientTask]], list[Update]]


def same_rounds(run: Assembly, captured: Train, anew: Train) -> None:
    """Two rounds with other clients, sub-models and rates, in which both must give the same bits."""
    memories: dict[int, Tensor | None] = {}
    for number, company in enumerate(([0, 1], [2, 0])):
        server = run.server
        sent = {task.client: task for task in server.tasks(sorted(company), 0.0)}
        rate = 0.05 / (number + 1)
        tasks = [replace(sent[c], learning_rate=rate, memory=memories.get(c)) for c in company]
        found, wanted = captured(tasks), anew(tasks)
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one.values, other.values)
            assert torch.equal(one.buffers, other.buffers)
            assert float(one.loss) == float(other.loss)
            assert (one.memory is None) == (other.memory is None)
            assert one.memory is None or other.memory is None or torch.equal(one.memory, other.memory)
        memories |= {update.client: update.memory for update in wanted}
        server.merge(wanted, 0.0)
        server.client_levels = [*server.client_levels[1:], server.client_levels[0]]


@pytest.mark.parametrize(
    "more", [{}, {"optimizer": {"kind": "adam"}}, {"optimizer": HEAVY}], ids=["sgd", "adam", "heavy"]
)
@pytest.mark.parametrize("method", ["fedgmr", "heterofl", "fjord", "fiarse"])
@pytest.mark.parametrize("name", TASKS)
def test_slots(name: str, method: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    training = {"learning_rate": 0.1, "batch_size": 10, "steps": 3, **more}
    rules = {**FROZEN, "interval": 1}
    run = objects(TASKS[name](), method, rules, links=COARSE[:1] + COARSE[2:4], seconds=1e6, training=training)
    local = training_of(run)
    if not local.work.rule.capturable(local.settings.optimizer):
        pytest.skip("an optimiser with a memory of its own forgets between widths")
    monkeypatch.setattr(slot, "_generator", lambda _: SimpleNamespace(get_offset=lambda: 0))
    slots, anew = Slots(local, 2), Slots(local, 2)
    for each in slots.slots:
        each.stream = Stream()  # type: ignore[assignment]
    with emulated(monkeypatch):
        same_rounds(run, slots.train, anew.train)
    assert all(isinstance(graph, Graph) for each in slots.slots for graph in each.graphs.values())
    assert all(each.graphs for each in slots.slots)


@INTERPRETED
@pytest.mark.parametrize(
    ("task", "method", "more"),
    [
        (tiny.dense(), "fedgmr", {"optimizer": HEAVY}),
        (tiny.dense(), "fjord", {}),
        (tiny.dense(), "fiarse", {}),
        (pictures(), "fedgmr", {}),
        (residual(), "fedgmr", {}),
        (sequences(dropout=0.2), "fedgmr", ADAM),
    ],
    ids=["momentum", "levels", "thresholds", "convolutions", "batch norm", "tokens"],
)
def test_stacks(task: Task, method: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = objects_of(task, method, rules={"interval": 1}, **more)
    anew = (stacked if task.name in ("dense", "pictures") else folded)(run)
    sides = [Stream(), Stream()]
    if isinstance(anew.net, FoldedNet):
        anew.net._sides.streams = deque(sides)  # type: ignore[arg-type]
    executor = StackedExecutor(anew.work, anew.net, keeps=anew.keeps)  # what is in the memory before does not matter
    executor._stream = Stream()  # type: ignore[assignment]
    with emulated(monkeypatch):
        same_rounds(run, executor.train, anew.train)
    assert [(count, graph.stream) for count, graph in executor._graphs.items()] == [(2, executor._stream)]  # type: ignore[attr-defined]
    assert all(side.joined for side in sides) == isinstance(anew.net, FoldedNet)


class Waiting(nn.Module):
    """Asks the device for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 4)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(images.flatten(1))
        return scores if float(images.sum().detach()) < 1e9 else scores * 2


@INTERPRETED
@pytest.mark.parametrize("model", [Residual, Waiting])
def test_a_trial_is_captured(model: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(objects_of(residual(model)))
    assert net is not None
    sides = [Stream(), Stream()]
    net._sides.streams = deque(sides)  # type: ignore[arg-type]
    inputs, targets = tiny.normed().train[:4]
    with emulated(monkeypatch):
        assert net.stands_alone(inputs, targets) == (model is Residual)
    # Three clients together, and each alone; turned weights are waited for, then two streams, or that of one layer.
    passes, waits = 4, 3 if model is Residual else 1
    assert sum(side.joined for side in sides) >= passes * waits
