"""Training data that belongs to clients already: a dataset per client, a user for every sample, a partitioner's parts.

Users become numbers, which the partition by user keeps together. Read next: `given.py`; `partition.py`.
"""

import copy
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedgmr.submodels.inputs import leaves
from fedgmr.tasks.columns import Columns, is_table
from fedgmr.tasks.given import joined, settle, source_of
from fedgmr.tasks.samples import Samples

_PLACE = "place_in_train"  # a column beside the others while a partitioner deals


def training_samples(
    name: str, data: Any, users: Any, test: Samples, columns: Columns | None, lazy: bool | None
) -> tuple[Samples, Tensor | None]:
    """The training samples, and the number of each one's user where users are known.

    Args:
        name: the task's.
        data: what the user gave as `train`: one dataset, or one per client in a list or a mapping.
        users: one per sample, the name of a column, or a partitioner of `flwr-datasets`.
        test: shows how many dimensions inputs have, which tells a list of samples from one of clients' pairs.
        columns: as in `given.py`.
        lazy: as in `given.py`.
    """
    where = f"{name}.train"
    clients = _clients(data, test, where)
    if clients is None:
        samples = settle(source_of(data, where, columns, users), where, lazy)
        if not hasattr(users, "load_partition"):
            return samples, None if users is None else _numbers(_named(users, data, name), len(samples), name)
        places, owners = _dealt(users, data, samples.targets, name)
        return samples.part(places), owners
    if users is not None:
        raise ValueError(f"{name}.users is given and {where} has a dataset per client: leave users out.")
    if not clients:
        raise ValueError(f"{where} is empty: give a dataset per client, at least one.")
    sources = [source_of(own, f"{where}[{client!r}]", columns) for client, own in clients.items()]
    owners = torch.repeat_interleave(torch.tensor([source.count for source in sources]))
    return settle(joined(sources), where, lazy), owners


def _clients(data: Any, test: Samples, where: str) -> dict[Any, Any] | None:
    """The datasets of the clients, by name or number; None where the data is one dataset."""
    if isinstance(data, Mapping) and not is_table(data):
        if type(data).__name__ == "DatasetDict":
            raise ValueError(f"{where} is a DatasetDict of {', '.join(data)}: give one of them, as data['train'].")
        return dict(data) if all(_is_dataset(own, test) for own in data.values()) else None
    if isinstance(data, list) and data and all(_is_dataset(own, test) for own in data):
        return dict(enumerate(data))
    return None


def _is_dataset(own: Any, test: Samples) -> bool:
    """Whether an entry is a client's dataset, and not a sample or an array."""
    if isinstance(own, tuple):
        if len(own) != 2:
            return False
        dims = {tensor.dim() for tensor in leaves(test[:1][0])}
        given = own[0] if isinstance(own[0], Mapping | tuple) else {"": own[0]}
        arrays = list(given.values()) if isinstance(given, Mapping) else list(given)
        return np.ndim(own[1]) > 0 and {getattr(a, "ndim", -1) for a in arrays} == dims
    pairs = isinstance(own, list) and bool(own) and isinstance(own[0], tuple)
    return pairs or isinstance(own, Samples | Dataset) or is_table(own)


def _named(users: Any, data: Any, name: str) -> Any:
    """The user of every sample, where a column names it."""
    if not isinstance(users, str):
        return users
    first = data[0] if is_table(data) or isinstance(data, list | Dataset) else None
    if not isinstance(first, Mapping) or users not in first:
        have = f"has the columns {', '.join(first)}" if isinstance(first, Mapping) else "has no columns"
        raise ValueError(
            f"{name}.users is {users!r}: {name}.train {have}; name one of them, or give a user per sample."
        )
    return data.select_columns([users])[:][users] if is_table(data) else [data[at][users] for at in range(len(data))]


def _numbers(users: Any, count: int, name: str) -> Tensor:
    """Users as int64; whole numbers as they are, others by the order in which they are met."""
    entries = users.cpu().numpy() if isinstance(users, Tensor) else np.asarray(users)
    if entries.ndim != 1 or len(entries) != count:
        shape = f"{len(entries)} entries" if entries.ndim == 1 else f"the shape {entries.shape}"
        raise ValueError(f"{name}.users has {shape}: give one per training sample, {count}.")
    if isinstance(users, Tensor):
        return users
    if entries.dtype.kind in "iu":
        return torch.from_numpy(entries.astype(np.int64))
    met = {user: number for number, user in enumerate(dict.fromkeys(entries.tolist()))}
    return torch.tensor([met[user] for user in entries.tolist()])


def _dealt(partitioner: Any, data: Any, targets: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The samples that a partitioner deals out, in their order, and the part that each is in."""
    places = list(range(len(targets)))
    if is_table(data):
        table = data.add_column(_PLACE, places)
    else:
        table = import_module("datasets").Dataset.from_dict({"label": targets.tolist(), _PLACE: places})
    partitioner = copy.deepcopy(partitioner)  # which takes a dataset once
    try:
        partitioner.dataset = table
    except Exception as error:
        raise ValueError(
            f"{name}.users is a {type(partitioner).__name__} that has a dataset already ({error}): give a new "
            "one, or its parts as train, one per client."
        ) from error
    owner = torch.full((len(targets),), -1)
    for number in range(partitioner.num_partitions):
        owner[torch.as_tensor(partitioner.load_partition(number)[_PLACE][:])] = number
    kept = torch.nonzero(owner >= 0).flatten()
    return kept, owner[kept]
