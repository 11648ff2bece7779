"""Data that is federated already: one dataset per client, or a column that names the user. A few seconds.

Run it with `python examples/users_own_split.py`. Twelve hospitals measure the same two quantities, each with an
instrument of its own. Their data is never mixed: every simulated client has one hospital's.
"""

import numpy as np
from torch import nn

import fedgmr

Pair = tuple[np.ndarray, np.ndarray]


def hospital(number: int, samples: int) -> Pair:
    """Healthy people are inside a circle, whose centre depends on the instrument; few or many are ill."""
    draws = np.random.default_rng(number)
    points = draws.uniform(-2, 2, (samples, 2)).astype(np.float32)
    centre = 0.3 * np.array([np.cos(number), np.sin(number)])
    return points, (np.linalg.norm(points - centre, axis=1) > 1 + 0.04 * number).astype(np.int64)


def net() -> nn.Module:
    """A small net."""
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def by_dataset() -> fedgmr.Task:
    """One dataset per client, by name."""
    return fedgmr.Task(
        name="hospitals",
        model=net,
        train={f"hospital {number}": hospital(number, 100 + 30 * number) for number in range(12)},
        test=hospital(12, 1000),
    )


def by_user() -> fedgmr.Task:
    """The same as one table, with the owner of every sample beside it."""
    parts = [hospital(number, 100 + 30 * number) for number in range(12)]
    inputs, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    owners = [f"hospital {number}" for number, part in enumerate(parts) for _ in part[1]]
    return fedgmr.Task(name="hospitals", model=net, train=(inputs, targets), test=hospital(12, 1000), users=owners)


def main() -> None:
    """Simulate twelve clients, a third of them on slow links, on either form of the data."""
    speeds = [(8.0, 2.0), (2.0, 0.5), (0.5, 0.1)]
    fleet = [fedgmr.Link(down=down, up=up) for down, up in speeds for _ in range(4)]
    for task in (by_dataset(), by_user()):
        result = fedgmr.simulate(task, method="fedavg", fleet=fleet, seconds=30, progress=False)
        print(f"{result.recipe.partition.kind}  {len(result.history)} rows  {result.history[-1]['accuracy']:.3f}")


if __name__ == "__main__":
    main()
