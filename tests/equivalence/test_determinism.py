"""The seed decides everything; clients may validate instead of the server, and that too is decided by the seed."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from e2e import tiny

import fedgmr
from equivalence.runs import BRISK, drive, objects
from fedgmr.experiments.assembly import Assembly
from fedgmr.training.work import LocalWork

AT_CLIENTS = {"evaluation": {"validation": "clients", "client_holdout": 0.2}}


def _history(**settings: Any) -> list[Any]:
    return [moment.whole() for moment in drive(objects(tiny.dropped(), **settings))]


@pytest.mark.parametrize(
    ("method", "rules"),
    [("fedgmr", BRISK), ("fedavg", {}), ("fedasync", {}), ("fedgmr", {**BRISK, "ranking": {"kind": "random"}})],
)
def test_the_seed_decides_the_run(method: str, rules: dict[str, Any]) -> None:
    seconds = 700.0 if method == "fedavg" else 150.0
    settings = {"method": method, "rules": rules, "seconds": seconds, "participation": {"fraction": 0.6}}
    first, again, other = (_history(**settings, seed=seed) for seed in (4, 4, 5))
    assert first == again
    assert len(first) > 1
    assert first[-1] != other[-1]
    assert first[-1][1] != other[-1][1]  # the weights, not only the times


def test_runs_in_threads_of_one_process_are_those_that_run_alone() -> None:
    """Initial weights and dropout are drawn from PyTorch's generator, which all threads share."""
    given = torch.get_rng_state()
    settings = {"method": "fedgmr", "rules": BRISK, "seconds": 150.0}
    alone = [_history(**settings, seed=seed) for seed in (4, 5, 6)]
    with ThreadPoolExecutor(3) as threads:
        together = [*threads.map(lambda seed: _history(**settings, seed=seed), (4, 5, 6))]
    assert together == alone
    assert torch.equal(torch.get_rng_state(), given)


@pytest.mark.parametrize("mode", [torch.no_grad(), torch.inference_mode()])
def test_a_caller_without_gradients_gets_and_prolongs_the_same_run(
    mode: AbstractContextManager[None], tmp_path: Path
) -> None:
    def run(output: str, seconds: float) -> fedgmr.Result:
        return fedgmr.simulate(tiny.normed(), seed=4, seconds=seconds, output=tmp_path / output, progress=False)

    whole = run("whole", 90.0)
    with mode:
        run("parts", 60.0)
        parts = fedgmr.resume(tmp_path / "parts", seconds=90.0, task=tiny.normed(), progress=False)
    assert parts.history["loss"] == whole.history["loss"]


def test_the_seed_decides_each_part() -> None:
    """Initial weights, split, mini-batches and network noise: each of them moves with the seed."""
    one, other = (objects(tiny.dense(), "fedgmr", seed=seed) for seed in (0, 1))
    assert not np.array_equal(_work(one).order.parts[0], _work(other).order.parts[0])
    assert not one.server.model.equal(other.server.model)
    tasks = [run.server.tasks(range(5), 0.0) for run in (one, other)]
    arrivals = [run.fleet.network.send(sent, 0.0)[0].arrival for run, sent in zip((one, other), tasks, strict=True)]
    assert arrivals[0] != arrivals[1]


def test_clients_validate_and_are_restored() -> None:
    settings = {"method": "fedgmr", "rules": BRISK, "seconds": 300.0, **AT_CLIENTS}
    run = objects(tiny.normed(), **settings)  # type: ignore[arg-type]
    before = tuple(run.server.client_levels)
    moments = drive(run)
    assert run.server.validate is None  # nobody else could have said when
    after = moments[-1].levels
    assert all(a >= b for a, b in zip(after, before, strict=True))
    assert sum(after) > sum(before)
    again = drive(objects(tiny.normed(), **settings))  # type: ignore[arg-type]
    assert [moment.whole() for moment in moments] == [moment.whole() for moment in again]


def test_no_client_trains_on_what_it_validates_on() -> None:
    run = objects(tiny.dense(), "fedgmr", BRISK, **AT_CLIENTS)
    work = _work(run)
    assert work.held_out is not None
    for part, held_out in zip(work.order.parts, work.held_out, strict=True):
        assert len(held_out) == round(0.2 * (len(part) + len(held_out)))
        assert not set(part.tolist()) & set(held_out.tolist())
    dealt = np.concatenate([*work.order.parts, *work.held_out])
    assert sorted(dealt.tolist()) == list(range(len(run.task.train.inputs)))  # the server held nothing back


@pytest.mark.parametrize("norm", ["rebuilt", "running"])
def test_client_validation_does_not_touch_training(norm: str) -> None:
    """An update with a report is the same update, but for the batch-norm statistics that it rebuilds."""
    evaluation = {**AT_CLIENTS["evaluation"], "norm": norm}
    run = objects(tiny.dropped(), "fedgmr", BRISK, **{**AT_CLIENTS, "evaluation": evaluation})
    executor: Any = run.fleet.executor
    tasks = run.server.tasks(range(5), 0.0)
    with_report = executor.train(tasks)
    executor.work = replace(executor.work, held_out=None)
    without = executor.train(tasks)
    for one, other in zip(with_report, without, strict=True):
        assert one.report is not None
        assert other.report is None
        assert 0 <= one.report.metric <= 1
        assert one.values.equal(other.values)
        assert one.buffers.equal(other.buffers) == (norm == "running")
        assert one.loss == other.loss


def _work(run: Assembly) -> LocalWork:
    return run.fleet.executor.work  # type: ignore[attr-defined, no-any-return]
