"""The training samples of each client: the recipe's partition, without the samples that are held out to validate."""

import numpy as np

from fedgmr.recipe import Recipe
from fedgmr.seeding import generator
from fedgmr.tasks.partition import Indices, Pool
from fedgmr.tasks.task import Task


def deal(recipe: Recipe, task: Task, clients: int) -> tuple[list[Indices], list[Indices] | None]:
    """The samples of every client by the recipe's partition, and those held out by each where clients are measured."""
    where = recipe.evaluation.validation
    indices = task.hold_out(recipe.seed)[0] if where == "server" else np.arange(len(task.train))
    targets = task.train.targets.cpu().numpy()
    labels = targets[indices] if targets.ndim == 1 and targets.dtype.kind in "iu" else None
    users = None if task.users is None else task.users.cpu().numpy()[indices]
    parts = recipe.partition.deal(Pool(indices=indices, labels=labels, users=users, clients=clients, seed=recipe.seed))
    if where != "clients" and not recipe.evaluation.of_clients:
        return parts, None
    pairs = [hold_out(recipe, client, part) for client, part in enumerate(parts)]
    return [part for part, _ in pairs], [held_out for _, held_out in pairs]


def hold_out(recipe: Recipe, client: int, part: Indices) -> tuple[Indices, Indices]:
    """A client's samples, cut in two: those it trains on and those it is measured on."""
    count = max(1, round(recipe.evaluation.client_holdout * len(part)))
    if count >= len(part):
        raise ValueError(
            f"evaluation.client_holdout is {recipe.evaluation.client_holdout}: "
            f"client {client} has only {len(part)} samples; lower it."
        )
    shuffled = generator(recipe.seed, "client_holdout", client).permutation(part)
    return np.sort(shuffled[count:]), np.sort(shuffled[:count])
