import argparse

import paper_fleet
import paper_round
import pytest
import torch


@pytest.mark.parametrize("fleet", ["high", "dense"])
def test_both_loops_train_the_same(fleet: str) -> None:
    bare, ours = next(paper_round.rounds_of("mnist5k", fleet, ["sequential"], device="cpu", tf32=False))
    round_ = ours["sequential"]
    weights = bare.train()
    assert [task.levels.ladder[task.level] for task in round_.tasks] == list(paper_fleet.DENSITIES[fleet])
    assert len(weights) == 10
    assert max(paper_round.distances_of(weights, round_)) <= paper_round.TOLERANCE
    # The gate can tell: a client that was given another one's weights is far away.
    assert min(paper_round.distances_of(weights[::-1], round_)) > 0.01
    assert all(torch.equal(a, b) for a, b in zip(weights, bare.train(), strict=True)), "a round begins where it began"


def test_a_client_needs_one_round_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([[0.5, 1e-5, 1e-5], [1e-5, 1e-5, 0.5], [0.5, 0.5, 1e-6]])
    monkeypatch.setattr(paper_round, "distances_of", lambda weights, ours: next(found))
    assert paper_round.farthest("mnist5k", "dense", ["sequential"], "cpu") == {"sequential": 1e-5}
    assert next(found) == [0.5, 0.5, 1e-6], "no third round where two suffice"
    monkeypatch.setattr(paper_round, "distances_of", lambda weights, ours: [1e-5, 0.5])
    assert paper_round.farthest("mnist5k", "dense", ["sequential"], "cpu") == {"sequential": 0.5}


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
