"""The workload in pfl-research: FederatedAveraging on a SimulatedBackend, in one process or several.

Users' data are tensors made before the clock starts, as in pfl-research's own benchmark. Several processes divide the
cohort and sum with torch.distributed, set up by pfl's environment variables (its guide to distributed simulations).
pfl asks for NCCL wherever there is a GPU, which refuses two processes on one GPU, so they use gloo instead.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from workload import Plan, Setting, Stopped, Turns, flat


def _join_processes(processes: int) -> list[subprocess.Popen[bytes]]:
    """Start the other processes from the first; must happen before pfl is imported, which joins the group."""
    started = []
    if "PFL_WORKER_RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"localhost:{port + i}" for i in range(processes))
        for rank in range(1, processes):
            started.append(
                subprocess.Popen(
                    [sys.executable, *sys.argv],
                    env={**os.environ, "PFL_WORKER_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            )
        os.environ["PFL_WORKER_RANK"] = "0"
    join = torch.distributed.init_process_group

    def with_gloo(*arguments: Any, **named: Any) -> Any:
        return join(*arguments, **{**named, "backend": "gloo"})

    torch.distributed.init_process_group = with_gloo
    return started


SETTING = Setting.parse()
os.environ["PFL_PYTORCH_DEVICE"] = SETTING.device
OTHERS = _join_processes(SETTING.processes) if SETTING.processes > 1 else []
RANK = int(os.environ.get("PFL_WORKER_RANK", 0))

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.aggregate.weighting import WeightByDatapoints  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402


class Network(torch.nn.Module):
    """The plan's network with the two methods that pfl requires."""

    def __init__(self, plan: Plan, layout: str, dropout: bool) -> None:
        super().__init__()
        self.layers = plan.model(layout, dropout)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of a mini-batch."""
        return cross_entropy(self.layers(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        """Evaluated once, before the first round; dropout does not matter."""
        return {"loss": Weighted(float(self.loss(inputs, targets)) * len(inputs), len(inputs))}


class Clock(TrainingProcessCallback):
    """Counts rounds; between turns the other processes wait for the first."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.stopped = turns, False

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Wait for the first turn."""
        self._give(self.turns.wait)
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        """Count the round."""
        if not self.stopped:
            self._give(self.turns.after_round)
        return self.stopped, Metrics()

    def _give(self, wait: Any) -> None:
        """The first process waits for its turn, the others for it; each counts the rounds of a turn itself."""
        if RANK == 0:
            try:
                turned = wait() is not False
            except Stopped:
                self.stopped = turned = True
        else:
            self.turns.left -= 1
            turned = self.turns.left <= 0
        if turned and SETTING.processes > 1:
            left = torch.tensor([-1 if self.stopped else self.turns.left])
            torch.distributed.broadcast(left, 0)
            self.turns.left, self.stopped = int(left), bool(left < 0)


def user_numbers(cohort: int) -> Iterator[int]:
    """The task of the plan for each call of pfl's sampler.

    Every process draws one user per process and keeps its own; with a cohort that the processes do not divide they
    draw different numbers of users in a round, and this keeps them in step.
    """
    mine = len(range(RANK, cohort, SETTING.processes))
    for call in count():
        group, process = divmod(call, SETTING.processes)
        done, place = divmod(group, mine)
        yield done * cohort + place * SETTING.processes + process


def make_users(plan: Plan) -> list[Dataset]:
    """One pfl Dataset per task of the plan, in order; those of other processes stay empty."""
    images, labels = plan.images(SETTING.layout, SETTING.device), plan.labels(SETTING.device)
    samples = torch.from_numpy(plan.samples).flatten(0, 1).flatten(1).to(SETTING.device)
    return [
        Dataset((images[chosen], labels[chosen]) if i % plan.cohort % SETTING.processes == RANK else ())
        for i, chosen in enumerate(samples)
    ]


def run(plan: Plan, *, rounds: int, dropout: bool, callbacks: list[TrainingProcessCallback]) -> torch.Tensor:
    """FedAvg for this many rounds; returns the weights after them."""
    network = Network(plan, SETTING.layout, dropout)
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )
    users, numbers = make_users(plan), user_numbers(plan.cohort)
    data = FederatedDataset(lambda number: users[number], lambda: next(numbers))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=plan.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=plan.rate, local_num_epochs=1, local_batch_size=plan.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=callbacks,
        send_metrics_to_platform=False,
    )
    return flat(network)


def main() -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())
    weights = run(SETTING.gate, rounds=len(SETTING.gate.clients), dropout=False, callbacks=[])
    if RANK == 0:
        SETTING.passed_gate(weights)
    run(SETTING.plan, rounds=10**9, dropout=True, callbacks=[Clock(Turns(SETTING.device))])


if __name__ == "__main__":
    main()
    for other in OTHERS:
        other.wait()
