"""The threaded executor: the updates of the sequential one with one thread, bit for bit."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from e2e import tiny
from equivalence.runs import drive, objects
from torch import nn
from torch.nn import functional

from fedgmr.tasks.task import Task
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


def test_a_model_that_draws_elsewhere_is_refused() -> None:
    task = tiny.dense()
    noisy = replace(task, model=lambda: nn.Sequential(task.model(), Noise()))
    run = objects(noisy, "fedavg", execution={"executor": "threaded"})
    with pytest.raises(ValueError, match=r"^execution.executor is threaded, and the model draws .* sequential\.$"):
        drive(run, ticks=1)
