"""Writes a workload to files for all simulators: `python benchmarks/simulators/plan.py DIRECTORY`.

fedgmr draws the cohorts, samples and initial weights from its seed. So fedgmr can run by its public API, and the others
follow the plan. pfl-research's CIFAR-10 benchmark has 1,000 users with 50 images each, IID;
fedgmr holds out at least one sample for the server, so the first test image joins the 50,000 training images. Without
FEDGMR_DATA the images are synthetic.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from workload import NETWORKS, flat

from fedgmr import Task
from fedgmr.seeding import derived_seed, generator
from fedgmr.server.participation import Known, Participation
from fedgmr.tasks.partition import IID, Pool, SampleOrder
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.task import named_task


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The simulated work, before anything is drawn."""

    network: str
    cohort: int
    batch: int
    steps: int
    rate: float = 0.1
    users: int = 1000
    images_per_user: int = 50


WORKLOADS = {
    "cifar10": Workload(network="cifar_cnn", cohort=50, batch=10, steps=5),
    "trivial": Workload(network="small_cnn", cohort=10, batch=10, steps=2),
}
# The gate has few users, so that they come again, and a lower rate, because pfl keeps differences
# of models in float32 whatever the model is, and at 0.1 an error of that size grows a thousandfold in a round.
GATE = {"users": 20, "cohort": 10, "rate": 0.01}
GATE_ROUNDS = 3


def write_images(root: Path, count: int, layouts: Sequence[str], seed: int) -> str:
    """Write normalised images in each layout and their labels; returns a description."""
    root.mkdir(parents=True)
    if os.environ.get("FEDGMR_DATA"):
        task = named_task("cifar10", {}, seed)
        pixels = torch.cat([task.train.inputs, task.test.inputs])[:count].permute(0, 2, 3, 1).numpy()
        labels, data = torch.cat([task.train.targets, task.test.targets])[:count].numpy(), task.stand_in or "CIFAR-10"
    else:
        draw = generator(seed, "synthetic images")
        pixels = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        labels, data = draw.integers(0, 10, count), "synthetic images of CIFAR-10's shape"
    images = pixels.astype(np.float32)
    mean, std = images.mean((0, 1, 2), dtype=np.float64), images.std((0, 1, 2), dtype=np.float64)
    images = ((images - mean) / std).astype(np.float32)
    for layout in layouts:
        shown = images if layout == "hwc" else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        np.save(root / f"images_{layout}.npy", shown)
    np.save(root / "labels.npy", labels.astype(np.int64))
    return data


def write_plan(root: Path, workload: Workload, images: Path, *, rounds: int, data: str, seed: int) -> None:
    """The rounds of a workload over the images in another directory."""
    root.mkdir(parents=True)
    np.save(root / "weights.npy", _initial_weights(workload.network, seed))
    users = range(workload.users)
    order = SampleOrder(_parts(workload, seed), seed=seed, batch_size=workload.batch)
    participation, given = Participation(count=workload.cohort), [0] * workload.users
    clients, samples = [], []
    for tick in range(rounds):
        chosen = participation.draw(users, Known(clients=len(users), seed=seed, tick=tick), in_flight=0)
        clients.append(chosen)
        samples.append([order.batches(client, given[client], workload.steps) for client in chosen])
        for client in chosen:
            given[client] += workload.steps
    for name, values in (("clients", clients), ("samples", samples)):
        np.save(root / f"{name}.npy", np.array(values))
    described = {**asdict(workload), "seed": seed, "data": data, "images": str(images.resolve())}
    (root / "plan.json").write_text(json.dumps(described, indent=1))


def _initial_weights(network: str, seed: int) -> np.ndarray:
    """Glorot uniform, as in pfl-research's benchmark."""
    torch.manual_seed(derived_seed(seed, "model"))
    layers = torch.nn.Sequential(*NETWORKS[network](True))
    for layer in layers:
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            torch.nn.init.xavier_uniform_(layer.weight)
    return flat(layers).numpy()


def _parts(workload: Workload, seed: int) -> list[np.ndarray]:
    """Each user's samples, as fedgmr assigns them."""
    nothing = torch.zeros(workload.users * workload.images_per_user + 1, dtype=torch.int64)
    samples = Samples(nothing, nothing)
    shape = Task(name="shape", model=torch.nn.Identity, train=samples, test=samples, holdout=1)
    indices, _ = shape.hold_out(seed)
    return IID().deal(Pool(indices=indices, labels=None, users=None, clients=workload.users, seed=seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, metavar="DIRECTORY")
    parser.add_argument("--rounds", nargs="+", default=[f"{name}=10" for name in WORKLOADS], metavar="NAME=N")
    parser.add_argument("--layouts", nargs="+", default=["chw", "hwc"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    root, seed = arguments.root, arguments.seed
    rounds = {name: int(number) for name, _, number in (text.partition("=") for text in arguments.rounds)}
    for folder, change, length in (("timed", {}, rounds), ("gate", GATE, dict.fromkeys(rounds, GATE_ROUNDS))):
        workloads = {name: replace(WORKLOADS[name], **change) for name in rounds}
        count = max(workload.users * workload.images_per_user for workload in workloads.values()) + 1
        data = write_images(root / folder / "images", count, arguments.layouts, seed)
        for name, workload in workloads.items():
            write_plan(
                root / folder / name, workload, root / folder / "images", rounds=length[name], data=data, seed=seed
            )


if __name__ == "__main__":
    main()
