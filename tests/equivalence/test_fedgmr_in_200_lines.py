"""The library agrees with examples/fedgmr_in_200_lines.py, given the same arrival times."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedgmr_in_200_lines
import pytest
import torch
from e2e import tiny
from torch import nn

from equivalence.runs import LINKS, Moment, drive, objects
from fedgmr import Task
from fedgmr.exchange import Update

TICKS = 40
EXAMPLE = Path(__file__).parents[2] / "examples" / "fedgmr_in_200_lines.py"


def task() -> Task:
    """In double precision, so that only another method can move a coordinate to another level."""
    made = tiny.dense()

    def net() -> nn.Module:
        # No unit that is dead: where nothing changes, rounding alone would rank.
        return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).double()

    train, test = ((inputs.double(), targets) for inputs, targets in (made.train[:], made.test[:]))
    return Task(name="dense", model=net, train=train, test=test)


@dataclass
class Recorded:
    """A run of the library: what there was after each tick, and who arrived before it."""

    moments: list[Moment]
    arrivals: list[list[int]]
    maps: list[torch.Tensor]


def library(rules: dict[str, Any], training: dict[str, Any], seed: int) -> Recorded:
    sections = {"training": training, "execution": {"executor": "sequential"}}
    run = objects(task(), "fedgmr", rules, seed=seed, seconds=1e6, **sections)
    arrivals: list[list[int]] = []
    maps: list[torch.Tensor] = []
    collect = run.fleet.collect

    def recorded(**wait: Any) -> list[Update]:
        updates: list[Update] = collect(**wait)
        arrivals.append(sorted(update.client for update in updates))
        return updates

    run.fleet.collect = recorded  # type: ignore[method-assign]
    moments = drive(run, ticks=TICKS, watch=lambda: maps.append(run.server.levels.levels.clone()))
    return Recorded(moments=moments, arrivals=arrivals, maps=maps)


@pytest.mark.parametrize("halving", [math.inf, 15.0])
def test_forty_ticks(halving: float) -> None:
    numbers = {"learning_rate": 0.2, "batch_size": 10, "steps": 3}
    schedule = {"kind": "constant"} if math.isinf(halving) else {"kind": "halving", "every": halving}
    rules = {"interval": 4, "restoration": {"patience": 1}}
    found = library(rules, {**numbers, "schedule": schedule}, seed=2)

    settings = fedgmr_in_200_lines.Settings(interval=4, patience=1, halving=halving, seed=2, **numbers)
    server = fedgmr_in_200_lines.FedGMR(task(), settings, [link.density for link in LINKS])
    server.dispatch(range(len(LINKS)))
    for moment, arrived, levels in zip(found.moments, found.arrivals, found.maps, strict=True):
        server.merge(arrived)
        server.dispatch(arrived)
        assert moment.tick == server.tick
        assert moment.levels == tuple(server.client_levels)
        assert torch.equal(levels.long(), server.levels)
        torch.testing.assert_close(moment.model, server.model, rtol=0, atol=1e-9)

    # All of it has really happened: restoration, stale and buffered updates, new rankings, a change of the model.
    last = found.moments[-1]
    assert sum(last.levels) > sum(found.moments[0].levels)
    assert max(s for moment in found.moments for s in moment.staleness if s is not None) >= 2
    assert any(len(arrived) < len(LINKS) for arrived in found.arrivals)
    assert sum(not one.equal(other) for one, other in itertools.pairwise(found.maps)) >= TICKS // 4 - 1
    assert last.score[0] > found.moments[0].score[0] + 0.2


def test_it_keeps_its_promises(capsys: pytest.CaptureFixture[str]) -> None:
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) <= 200
    borrowed = {line.split()[1] for line in lines if line.startswith("from fedgmr")}
    assert borrowed == {"fedgmr.seeding", "fedgmr.tasks.mnist5k", "fedgmr.tasks.partition", "fedgmr.tasks.task"}
    fedgmr_in_200_lines.main(ticks=1)
    assert capsys.readouterr().out.splitlines()[0].split() == ["tick", "accuracy", "density", "of", "each", "client"]
