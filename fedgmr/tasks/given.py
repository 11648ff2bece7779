"""Data as users have it: pairs of tensors or arrays, map-style datasets, tables of Hugging Face's `datasets`.

Everything becomes a `Source` of samples, and then `Samples`, in memory or lazy. docs/own-data.md shows every kind. Read
next: `samples.py`; `columns.py`, tables; `collation.py`, values to tensors; `owners.py`, data that belongs to clients.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fedgmr.settings.refusals import say_in_one_line
from fedgmr.submodels.inputs import Inputs, each, leaves
from fedgmr.tasks.collation import classes_as_int64, stack, tensor_of, type_of
from fedgmr.tasks.columns import Columns, first_sample, is_table, name_columns, table_source
from fedgmr.tasks.samples import Batch, LazyInputs, Places, Samples, Source

_LARGE = 2 << 30  # bytes above which a dataset is read when it is needed
_CHUNK = 512  # samples read at once on the way into memory


def source_of(data: Any, where: str, columns: Columns | None = None, users: Any = None) -> Source:
    """The samples of `data`, which the user gave as `where`; a column that names the user is no input."""
    if isinstance(data, Samples):
        return Source(count=len(data), read=lambda places: data[torch.from_numpy(places)], memory=data)
    if type(data) is TensorDataset and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, tuple):
        return _pair(data, where)
    if is_table(data):
        return table_source(data, where, columns, users)
    _refuse_others(data, where)
    return _rows(data, where, columns, users)


def joined(sources: Sequence[Source]) -> Source:
    """The samples of all sources, one source after the other."""
    starts = np.cumsum([0, *(source.count for source in sources)])

    def read(places: Places) -> Batch:
        numbers = np.searchsorted(starts, places, side="right") - 1
        met = np.unique(numbers)
        batches = [sources[n].read(places[numbers == n] - starts[n]) for n in met]
        order = np.argsort(np.concatenate([np.flatnonzero(numbers == n) for n in met]))
        inputs, targets = _together([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])
        back = torch.from_numpy(order)
        return each(lambda tensor: tensor[back], inputs), targets[back]

    known = [source.memory.targets if source.memory else source.targets for source in sources]
    targets = None if any(part is None for part in known) else torch.cat([part for part in known if part is not None])
    return Source(count=int(starts[-1]), read=read, targets=targets)


def settle(source: Source, where: str, lazy: bool | None) -> Samples:
    """The source's samples: in memory, or read when they are needed; None: by their size."""
    if not source.count:
        raise ValueError(f"{where} has 0 inputs and 0 targets: give as many of each, at least one.")
    if source.memory is not None and (not lazy or source.memory.lazy):
        return source.memory
    few = np.arange(min(2, source.count))
    inputs, targets = source.read(few)
    if lazy is None:
        lazy = sum(tensor.nbytes for tensor in leaves(inputs)) * source.count > _LARGE * len(few)
    known = source.memory.targets if source.memory else source.targets
    if lazy:
        if known is None or known.dtype != targets.dtype or not torch.equal(known[: len(few)], targets):
            known = torch.cat([source.read(places)[1] for places in _chunks(source.count)])
        return Samples(LazyInputs(lambda places: source.read(places)[0]), known, np.arange(source.count))
    everything = each(lambda tensor: tensor.new_empty((source.count, *tensor.shape[1:])), (inputs, targets))
    for places in _chunks(source.count):
        for room, part in zip(leaves(everything), leaves(source.read(places)), strict=True):
            _check_alike(room, part, where)
            room[int(places[0]) : int(places[-1]) + 1] = part
    return Samples(*everything)


def _pair(data: tuple[Any, ...], where: str) -> Source:
    """(inputs, targets), each with an entry per sample."""
    if len(data) != 2:
        raise ValueError(f"{where} is a tuple of {len(data)} entries: give (inputs, targets); inputs may be a tuple.")
    given, answers = data
    targets = classes_as_int64(answers, tensor_of(answers, f"{where}'s targets"))
    inputs = given if _is_rows(given) else _arrays(given, f"{where}'s inputs")
    tensors = leaves(inputs)
    counts = {len(tensor) if tensor.dim() else 0 for tensor in tensors} if tensors else {len(given)}
    if len(counts) > 1:
        raise ValueError(f"{where}'s inputs have {min(counts)} and {max(counts)} entries: give as many in each.")
    (count,), answered = counts, len(targets) if targets.dim() else 0
    if count != answered or not count:
        raise ValueError(f"{where} has {count} inputs and {answered} targets: give as many of each, at least one.")
    if tensors:
        return source_of(Samples(inputs, targets), where)

    def read(places: Places) -> Batch:
        return stack([given[int(at)] for at in places], f"{where}'s inputs"), targets[torch.from_numpy(places)]

    return Source(count=count, read=read, targets=targets)


def _arrays(given: Any, where: str) -> Inputs:
    if isinstance(given, Mapping):
        return {str(key): tensor_of(value, f"{where}[{key!r}]") for key, value in given.items()}
    if isinstance(given, tuple):
        return tuple(tensor_of(value, f"{where}[{at}]") for at, value in enumerate(given))
    return tensor_of(given, where)


def _rows(data: Any, where: str, columns: Columns | None, users: Any) -> Source:
    """A map-style dataset: (input, target) or a mapping of columns for every sample."""
    if not len(data):
        raise ValueError(f"{where} has 0 inputs and 0 targets: give as many of each, at least one.")
    first = first_sample(data, where)
    parts: tuple[Sequence[Any], bool, Any] = ((0,), True, 1)  # of a pair
    if isinstance(first, Mapping):
        parts = name_columns(first, where, columns, users)
    elif not isinstance(first, tuple | list) or len(first) != 2:
        word = f"{len(first)} entries" if isinstance(first, tuple | list) else type(first).__name__
        raise ValueError(f"{where}[0] is {word}: let every sample be (input, target), or a mapping of columns.")

    names, single, target = parts

    def read(places: Places) -> Batch:
        items = [data[int(at)] for at in places]
        try:
            inputs = [item[names[0]] if single else {name: item[name] for name in names} for item in items]
            answers = [item[target] for item in items]
        except (LookupError, TypeError) as error:
            fix = f"let all samples be as {where}[0]"
            raise ValueError(f"{where} has a sample that lacks a part ({say_in_one_line(error)}): {fix}.") from error
        targets = classes_as_int64(answers, stack(answers, f"{where}'s targets"))
        return stack(inputs, f"{where}'s inputs"), targets

    return Source(count=len(data), read=read, targets=_known_targets(data))


def _known_targets(data: Any) -> Tensor | None:
    """The targets that a dataset knows without reading its inputs."""
    if isinstance(data, Subset):
        whole = _known_targets(data.dataset)
        return None if whole is None else whole[torch.as_tensor(data.indices)]
    targets: Any = getattr(data, "targets", None)
    if not hasattr(targets, "__len__") or getattr(data, "target_transform", None) is not None:
        return None
    if len(targets) != len(data):
        return None
    try:
        return classes_as_int64(None, tensor_of(targets, "targets"))
    except ValueError:  # names, or files of targets: only reading tells
        return None


def _check_alike(room: Tensor, part: Tensor, where: str) -> None:
    """Refuse samples that do not fit where the first ones do; PyTorch would cut numbers off, or repeat them."""
    if part.shape[1:] != room.shape[1:]:
        raise ValueError(
            f"{where} has samples of the shapes {tuple(room.shape[1:])} and {tuple(part.shape[1:])}: give all one "
            "shape, or pad them."
        )
    if not torch.can_cast(part.dtype, room.dtype):
        raise ValueError(
            f"{where} has samples of {type_of(room)} and of {type_of(part)}: give all one type of numbers."
        )


def _is_rows(data: Any) -> bool:
    if isinstance(data, Tensor | np.ndarray | Mapping | tuple | str) or hasattr(data, "to_numpy"):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list)


def _refuse_others(data: Any, where: str) -> None:
    kind, fix = type(data).__name__, "give (inputs, targets), a map-style dataset or a table of Hugging Face's datasets"
    if isinstance(data, str) or hasattr(data, "__fspath__"):
        raise ValueError(f"{where} is {str(data)!r}: read the file first; {fix}.")
    if isinstance(data, DataLoader):
        raise ValueError(f"{where} is a DataLoader: mini-batches are drawn here; give its dataset, loader.dataset.")
    if isinstance(data, IterableDataset) or (hasattr(data, "__iter__") and not hasattr(data, "__getitem__")):
        raise ValueError(f"{where} is a {kind}, which has no sample i: {fix}.")
    if isinstance(data, Tensor | np.ndarray) or hasattr(data, "to_numpy"):
        raise ValueError(f"{where} is a {kind} alone: give (inputs, targets).")
    if isinstance(data, Mapping) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise ValueError(f"{where} is a {kind}: {fix}.")


def _together(parts: Sequence[Inputs]) -> Inputs:
    """The inputs of several sources, one after the other."""
    if isinstance(parts[0], dict):
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return torch.cat(list(parts))


def _chunks(count: int) -> list[Places]:
    return [np.arange(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
