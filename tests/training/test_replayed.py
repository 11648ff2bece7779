"""Replaying: eager on a CPU; on a GPU captured at the second call unless something waits for the device."""

import pytest
import torch
from torch import nn

from fedgmr.tasks.losses import token_cross_entropy
from fedgmr.tasks.metrics import accuracy
from fedgmr.tasks.task import Task
from fedgmr.training.evaluation.evaluator import Evaluator
from fedgmr.training.evaluation.replayed import Replayed, Sums
from training.captured import Graph, Stream, emulated

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_on_a_cpu_the_function_is_called_every_time() -> None:
    calls: list[int] = []

    def compute() -> Sums:
        calls.append(1)
        return torch.ones(2), len(calls)

    replayed = Replayed(compute, None)
    assert [replayed()[1] for _ in range(3)] == [1, 2, 3]


def test_a_graph_is_captured_on_the_stream_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    place, stream = torch.zeros(2), Stream()
    with emulated(monkeypatch):
        replayed = Replayed(lambda: (place * 2, ((2, 7),)), stream)  # type: ignore[arg-type]
        for number in range(4):
            place.fill_(number)
            assert replayed()[0].tolist() == [2.0 * number] * 2
    assert isinstance(replayed._graph, Graph)
    assert replayed._graph.stream is stream


@CUDA
def test_on_a_gpu_it_is_captured_and_reads_what_lies_there_now() -> None:
    place = torch.zeros(2, device="cuda")
    calls: list[int] = []

    def compute() -> Sums:
        calls.append(1)
        return place * 2, 7

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    replayed = Replayed(compute, stream)
    results = []
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        for number in range(5):
            place.fill_(number)
            results.append(replayed())
    stream.synchronize()
    assert [sums.tolist() for sums, _ in results] == [[2.0 * number] * 2 for number in range(5)]
    assert {count for _, count in results} == {7}
    assert len(calls) == 2, "once eagerly, once for the capture"


@CUDA
def test_what_waits_for_the_device_stays_eager() -> None:
    place = torch.zeros(1, device="cuda")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    replayed = Replayed(lambda: (place + 1, int(place.item())), stream)
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        for number in range(4):
            place.fill_(number)
            sums, count = replayed()
            assert (sums.item(), count) == (number + 1, number)
    assert torch.cuda.get_sync_debug_mode() == 0


@CUDA
@pytest.mark.parametrize("kind", ["numbers", "tokens", "read when needed"])
def test_a_gpu_scores_as_a_cpu_and_the_model_may_change_meanwhile(kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    if kind == "tokens":
        inputs, targets = (torch.randint(0, 9, (40, 5), generator=draw) for _ in range(2))
        task = Task(
            name="t",
            model=lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)),
            train=(inputs, targets),
            test=(inputs, targets),
            loss=token_cross_entropy,
            metric=accuracy(ignore=0),
        )
    else:
        samples = (torch.randn(40, 6, generator=draw), torch.randint(0, 3, (40,), generator=draw))
        lazy = kind == "read when needed"
        task = Task(name="t", model=lambda: nn.Linear(6, 3), train=samples, test=samples, lazy=lazy)
    moved = task.to(torch.device("cuda"))
    here, there = Evaluator(task, task.layout()), Evaluator(moved, moved.layout(), validation=moved.test)
    empty = torch.empty(0)
    for seed in range(5):
        model = task.layout().flatten(task.initial_model(seed))
        remote = model.cuda()
        measurement = there.test(remote, empty.cuda())
        del remote  # its memory may be used again
        torch.zeros(len(model), device="cuda")
        expected = here.test(model, empty)
        assert measurement.accuracy == pytest.approx(expected.accuracy)
        assert measurement.ready
        assert measurement.loss == pytest.approx(expected.loss, rel=1e-3)
        assert there.validate(model.cuda(), empty.cuda()).accuracy == pytest.approx(expected.accuracy)
