"""The threaded executor: the updates of the sequential one with one thread, bit for bit."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from e2e import tiny
from equivalence.runs import drive, objects
from torch import nn
from torch.nn import functional

from fedgmr.exchange import ClientTask, Update
from fedgmr.seeding import borrowed_generator
from fedgmr.tasks.task import Task
from fedgmr.training import choice
from fedgmr.training.plain.threaded import ThreadedExecutor


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["fedgmr", "fedavg", "fedasync", "heterofl", "fjord", "fedrolex", "fiarse"])
@pytest.mark.parametrize("task", [tiny.wide, tiny.dropped])
def test_the_same_bits_as_one_thread(method: str, task: Callable[[], Task]) -> None:
    threaded = objects(task(), method, execution={"executor": "threaded"})
    executor = threaded.fleet.executor
    assert isinstance(executor, ThreadedExecutor)
    assert executor.threads == 2
    everybody = range(len(threaded.server.profiles))
    tasks = threaded.server.tasks(everybody, 0.0)
    found = executor.train(tasks)
    assert torch.get_num_threads() == 2
    again = executor.train(tasks[::-1])[::-1]
    torch.set_num_threads(1)
    plain = objects(task(), method, execution={"executor": "sequential"})
    wanted = plain.fleet.executor.train(plain.server.tasks(everybody, 0.0))
    for one, other, third in zip(found, wanted, again, strict=True):
        assert torch.equal(one.values, other.values)
        assert torch.equal(one.buffers, other.buffers)
        assert torch.equal(one.values, third.values)
        assert (one.client, one.loss, one.report, one.natural) == (
            other.client,
            other.loss,
            other.report,
            other.natural,
        )


def test_a_whole_run() -> None:
    run = objects(tiny.dropped(), "fedgmr", execution={"executor": "threaded"})
    assert [moment.tick for moment in drive(run, ticks=6)][-1] == 6
    assert run.recipe.execution.executor == "threaded"


class Noise(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.dropout(inputs, 0.5, self.training)


def noisy() -> Task:
    task = tiny.dense()
    return replace(task, model=lambda: nn.Sequential(task.model(), Noise()))


def test_a_model_that_draws_elsewhere_is_refused() -> None:
    run = objects(noisy(), "fedavg", execution={"executor": "threaded"})
    with pytest.raises(ValueError, match=r"^execution.executor is threaded, and the model draws .* sequential\.$"):
        drive(run, ticks=1)


def test_another_run_in_this_process_may_draw_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    run = objects(tiny.dense(), "fedavg", execution={"executor": "threaded"})
    inside, leave = threading.Event(), threading.Event()

    def draw() -> None:
        with borrowed_generator():
            torch.rand(1)
            inside.set()
            leave.wait()

    other, train = threading.Thread(target=draw), ThreadedExecutor._train

    def train_beside(executor: ThreadedExecutor, task: ClientTask) -> Update:
        if not other.ident:
            other.start()
            inside.wait(0.3)
        return train(executor, task)

    monkeypatch.setattr(ThreadedExecutor, "_train", train_beside)
    try:
        assert len(run.fleet.executor.train(run.server.tasks(range(2), 0.0))) == 2
    finally:
        leave.set()
        other.join()


@pytest.mark.parametrize(
    ("task", "threads", "executor"),
    [
        (tiny.dense, 2, "threaded"),
        (tiny.dropped, 2, "threaded"),
        (tiny.dense, 1, "sequential"),
        (noisy, 2, "sequential"),
    ],
)
def test_auto_is_threaded_where_steps_are_small(task: Callable[[], Task], threads: int, executor: str) -> None:
    torch.set_num_threads(threads)
    before = torch.default_generator.get_state()
    assert objects(task()).recipe.execution.executor == executor
    assert torch.equal(torch.default_generator.get_state(), before)


@pytest.mark.parametrize("threads", [2, 8])
def test_auto_is_sequential_where_steps_are_large(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(threads)
    task = tiny.dense()
    linear = [layer for layer in task.model().modules() if isinstance(layer, nn.Linear)]
    products = 10 * sum(layer.weight.numel() for layer in linear)  # of a mini-batch of 10
    monkeypatch.setattr(choice, "_SMALL", products)
    assert objects(task).recipe.execution.executor == "threaded"
    monkeypatch.setattr(choice, "_SMALL", products - 1)
    assert objects(task).recipe.execution.executor == "sequential"
