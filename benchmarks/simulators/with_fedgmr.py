"""The workload in fedgmr: a Task, FedAvg with a cohort, `simulate`, and a watcher for the clock."""

from collections.abc import Mapping
from contextlib import suppress

import torch
from torch.nn.functional import cross_entropy
from workload import Plan, Setting, Stopped, Turns

from fedgmr import Link, Result, Task, Watcher, named_method, simulate


def make_task(plan: Plan, *, layout: str, dropout: bool) -> Task:
    """The plan's data and network."""
    images, labels = plan.images(layout), plan.labels()
    return Task(
        name="simulators",
        model=lambda: plan.model(layout, dropout),
        train=(images, labels),
        test=(images[:1000], labels[:1000]),  # evaluated once, before the first round
        loss=cross_entropy,
        holdout=1,
    )


class Watch(Watcher):
    """A watcher that counts rounds."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def after_tick(self, state: Mapping[str, float]) -> None:
        """After every tick."""
        self.turns.after_round()


def run(plan: Plan, setting: Setting, *, rounds: float, dropout: bool, watcher: Watch | None = None) -> Result:
    """FedAvg over the plan's users; links so fast that a virtual second is one round."""
    return simulate(
        make_task(plan, layout=setting.layout, dropout=dropout),
        method=named_method("fedavg", {"weighting": "samples"}),
        fleet=[Link(down=1e9, up=1e9)] * plan.users,
        seconds=rounds + 0.5,
        seed=plan.seed,
        network={"server_rate": 1e9, "compute_seconds": 1.0, "noise": 0.0},
        participation={"count": plan.cohort},
        training={"learning_rate": plan.rate, "batch_size": plan.batch, "steps": plan.steps},
        evaluation={"every_seconds": 1e9},
        execution={"executor": setting.executor, "tf32": True},
        device=setting.device,
        progress=False,
        watcher=watcher,
    )


def main() -> None:
    setting = Setting.parse()
    result = run(setting.gate, setting, rounds=len(setting.gate.clients), dropout=False)
    setting.passed_gate(torch.cat([values.reshape(-1) for values in result.model.values()]))
    turns = Turns(setting.device)
    turns.wait()
    run(setting.plan, setting, rounds=1e6, dropout=True, watcher=Watch(turns))


if __name__ == "__main__":
    with suppress(Stopped):
        main()
