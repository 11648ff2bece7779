"""When and in which order tasks are trained changes nothing: not the results, not the times."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from e2e import tiny

from equivalence.runs import BRISK, drive, objects
from fedgmr.exchange import ClientTask, Update
from fedgmr.experiments.assembly import Assembly, assemble
from fedgmr.methods import BUILT_IN
from fedgmr.training.executor import Executor

SECONDS = {"fedgmr": 200.0, "fedgmr_without_restoration": 120.0, "fedavg": 700.0, "fedasync": 120.0}
RULES: dict[str, dict[str, Any]] = {
    "fedgmr": BRISK,
    "fedgmr_without_restoration": {"interval": 2, "buffer": {"keep": False}, "coordination": {"period": 12.0}},
    "fedavg": {},
    "fedasync": {},
}


class InOrder:
    """Trains the tasks of a batch one by one in an order of its own, alternating between executors."""

    def __init__(
        self, executors: Sequence[Executor], arrange: Callable[[int], Sequence[int]], *, ahead: bool = False
    ) -> None:
        self.executors, self.arrange, self.ahead = executors, arrange, ahead

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        trained = {}
        for place, i in enumerate(self.arrange(len(tasks))):
            (trained[i],) = self.executors[place % len(self.executors)].train([tasks[i]])
        return [trained[i] for i in range(len(tasks))]


class Ahead:
    """Trains tasks before they are asked for: at dispatch, or all that are in flight when the first is due."""

    ahead = False  # the fleet does not help

    def __init__(self, run: Assembly, *, at_dispatch: bool) -> None:
        self.executor, self.early = another(run), 0
        self.waiting, self.done = list[ClientTask](), dict[tuple[int, int], Update]()
        send = run.fleet.dispatch

        def dispatch(tasks: Sequence[ClientTask], *, tick: int) -> None:
            send(tasks, tick=tick)
            self.waiting += tasks
            if at_dispatch:
                self._train_waiting()

        run.fleet.dispatch = dispatch  # type: ignore[method-assign]

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        if any((task.client, task.version) not in self.done for task in tasks):
            self._train_waiting()
        self.early += len(self.done) - len(tasks)
        return [self.done.pop((task.client, task.version)) for task in tasks]

    def _train_waiting(self) -> None:
        tasks = self.waiting[::-1]
        for task, update in zip(tasks, self.executor.train(tasks), strict=True):
            self.done[task.client, task.version] = update
        self.waiting.clear()


def another(run: Assembly) -> Executor:
    """One more executor like the run's own."""
    return assemble(run.recipe, run.task).fleet.executor


def _shuffled(count: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(count).permutation(count)]


def _chunked(count: int) -> list[int]:
    """Pairs from the back: ..., 2, 3, 0, 1."""
    return [i for start in range(count - 1 - (count - 1) % 2, -1, -2) for i in range(start, min(start + 2, count))]


EXECUTORS: dict[str, Callable[[Assembly], Any]] = {
    "reversed": lambda run: InOrder([another(run)], lambda count: range(count - 1, -1, -1)),
    "shuffled": lambda run: InOrder([another(run)], _shuffled),
    "chunked": lambda run: InOrder([another(run), another(run)], _chunked),
    "given all in flight": lambda run: InOrder([another(run)], _shuffled, ahead=True),
    "at dispatch": lambda run: Ahead(run, at_dispatch=True),
    "all in flight": lambda run: Ahead(run, at_dispatch=False),
}


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("name", EXECUTORS)
def test_any_executor_gives_the_same_run(method: str, name: str, reference: dict[str, list[Any]]) -> None:
    run = objects(tiny.dropped(), method, RULES[method], seconds=SECONDS[method])
    executor = EXECUTORS[name](run)
    run.fleet.executor = executor
    assert [moment.whole() for moment in drive(run)] == reference[method]
    if isinstance(executor, Ahead) and method != "fedavg":
        assert executor.early > 0  # some tasks waited, trained, while others were merged


@pytest.fixture(scope="module")
def reference() -> dict[str, list[Any]]:
    runs = {method: objects(tiny.dropped(), method, rules, seconds=SECONDS[method]) for method, rules in RULES.items()}
    return {method: _history(run) for method, run in runs.items()}


@pytest.mark.parametrize("method", [method for method in BUILT_IN if method not in RULES])
def test_every_other_method_too(method: str) -> None:
    run, chunked = (objects(tiny.dropped(), method, {"interval": 2}, seconds=130.0) for _ in range(2))
    chunked.fleet.executor = EXECUTORS["chunked"](chunked)
    assert _history(chunked) == _history(run)


@pytest.mark.parametrize("name", ["reversed", "chunked", "given all in flight"])
def test_kept_momentum_too(name: str) -> None:
    optimizer = {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.001, "keep": True}
    training = {"learning_rate": 0.02, "batch_size": 10, "steps": 3, "optimizer": optimizer}
    run, other, forgetful = (
        objects(tiny.dropped(), "fedgmr", BRISK, seconds=200.0, training={**training, "optimizer": chosen})
        for chosen in (optimizer, optimizer, optimizer | {"keep": False})
    )
    other.fleet.executor = EXECUTORS[name](other)
    history = _history(run)
    assert _history(other) == history
    assert _history(forgetful)[-1] != history[-1], "what is kept matters"
    for client, memory in run.fleet.memories.items():
        assert memory.equal(other.fleet.memories[client])
    assert sorted(run.fleet.memories) == list(range(5))


def _history(run: Assembly) -> list[Any]:
    moments = drive(run)
    assert len(moments) > 3
    return [moment.whole() for moment in moments]
