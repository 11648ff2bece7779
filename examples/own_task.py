"""Your own task: a module and tensors become a Task, and a simulated fleet learns it. No download, a few seconds.

Run it with `python examples/own_task.py`. From the command line the same task goes by its import path, started in
this directory: `python -m fedgmr run quickstart task=own_task:two_moons`.
"""

import torch
from torch import nn

import fedgmr


def two_moons(samples: int = 6000, seed: int = 0) -> fedgmr.Task:
    """Two half circles that reach into each other, one class each."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (samples,), generator=draw)
    angles = torch.pi * torch.rand(samples, generator=draw)
    side = 1 - 2 * labels
    points = torch.stack([side * angles.cos() + labels, side * angles.sin() + 0.5 * labels], dim=1)
    points += 0.15 * torch.randn(points.shape, generator=draw)
    return fedgmr.Task(
        name="two_moons",
        title="Two moons",
        model=lambda: nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)),
        train=(points[:-1000], labels[:-1000]),
        test=(points[-1000:], labels[-1000:]),
    )


def main() -> None:
    """Simulate ten clients, six of them on the slowest link, and print how the accuracy grows."""
    result = fedgmr.simulate(
        two_moons(),
        method=fedgmr.named_method("fedgmr", {"interval": 10, "restoration": {"patience": 2}}),
        fleet=fedgmr.FleetSettings(name="high", scale="model"),
        seconds=2000,
        partition={"kind": "dirichlet", "alpha": 0.5},
    )
    print(" seconds  accuracy  mean density")
    for row in result.history:
        density = sum(row["density"]) / len(row["density"])
        print(f"{row['seconds']:8.0f}  {row['accuracy']:8.3f}  {density:12.2f}")


if __name__ == "__main__":
    main()
