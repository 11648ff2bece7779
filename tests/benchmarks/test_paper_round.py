import argparse
from collections.abc import Iterator

import paper_fleet
import paper_round
import pytest
import torch


@pytest.mark.parametrize("fleet", ["high", "dense"])
def test_both_loops_train_the_same(fleet: str) -> None:
    bare, ours = next(paper_round.rounds_of("mnist5k", fleet, ["sequential"], device="cpu", tf32=False))
    round_ = ours["sequential"]
    weights, tasks = bare.weights_kept(), round_.tasks
    assert [task.levels.ladder[task.level] for task in tasks] == list(paper_fleet.DENSITIES[fleet])
    assert len(weights) == 10
    assert max(paper_round.distances_of(weights, round_.weights_kept(), tasks)) <= paper_round.TOLERANCE
    # The gate can tell: a client that has learned from other samples is far away.
    later, _ = list(paper_round.rounds_of("mnist5k", fleet, [], device="cpu", tf32=False, later=2))[1]
    assert min(paper_round.distances_of(weights, later.weights_kept(), tasks)) > 0.01
    again = bare.weights_kept()
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True)), "a round begins where it began"
    changed = paper_round.distances_of(weights, bare.weights_kept(paper_round.CHANGE), tasks)
    assert 0 < max(changed) < 1e-3


def test_a_client_needs_one_round_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*rounds: list[float]) -> Iterator[list[float]]:
        told = iter([each for one in rounds for each in ([1e-6] * len(one), one)])  # the bare loop, then ours
        monkeypatch.setattr(paper_round, "distances_of", lambda weights, others, tasks: next(told))
        return told

    def farthest() -> dict[str, float]:
        return paper_round.farthest("mnist5k", "alone", ["sequential"], "cpu")

    left = found([0.5, 1e-5, 1e-5], [1e-5, 1e-5, 0.5], [0.5, 0.5, 1e-6])
    assert farthest() == {"bare": 1e-6, "sequential": 1e-5}
    assert next(left) == [1e-6] * 3, "no third round where two suffice"
    found(*[[1e-5, 0.5]] * paper_round.ATTEMPTS)
    assert farthest() == {"bare": 1e-6, "sequential": 0.5}


@pytest.mark.parametrize(("first", "after", "own", "timed"), [
    (1e-4, 1e-3, 1e-4, True), (1e-2, 1e-3, 1e-4, False), (1e-4, 0.4, 0.3, True), (1e-4, 0.4, 0.1, False)
])  # fmt: skip
def test_other_weights_have_no_time(
    monkeypatch: pytest.MonkeyPatch, first: float, after: float, own: float, timed: bool
) -> None:
    def farthest(*_: object, steps: int | None = None, **__: object) -> dict[str, float]:
        return {"bare": own, "sequential": after} if steps is None else {"bare": 1e-4, "sequential": first}

    monkeypatch.setattr(paper_round, "farthest", farthest)
    arguments = argparse.Namespace(device="cpu", executor=["sequential"], turns=1, clock="cpu")
    (row,), _ = paper_round.measure("mnist5k", "alone", arguments)
    assert (row["fedgmr ms"] != "other weights") is timed


def test_a_row_says_what_was_measured() -> None:
    arguments = argparse.Namespace(device="cpu", executor=["sequential"], turns=1, clock="cpu")
    (row,), _ = paper_round.measure("mnist5k", "high", arguments)
    assert (row["net"], row["densities"], row["executor"], row["limit"]) == ("mnist5k", "high", "sequential", "0.95")
    ratio = float(str(row["bare ms"])) / float(str(row["fedgmr ms"]))
    assert float(str(row["times as fast"])) == pytest.approx(ratio, rel=0.02)


@pytest.mark.parametrize("net", paper_fleet.NETS)
def test_made_up_samples_fit_the_net(net: str) -> None:
    task = paper_fleet.made_up(net)
    with torch.no_grad():
        outputs = task.initial_model(0)(task.train.inputs[:2])
    assert outputs.shape[-1] == paper_fleet.NETS[net].classes
    assert torch.isfinite(task.loss(outputs, task.train.targets[:2]))
