"""Data as users have it: pairs of tensors or arrays, map-style datasets, tables of Hugging Face's `datasets`.

Everything becomes a `Source` of samples, and then `Samples`, in memory or lazy. docs/own-data.md shows every kind. Read
next: `samples.py`; `collation.py`, single values to tensors; `owners.py`, data that belongs to clients already.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fedgmr.submodels.inputs import Inputs, each, leaves
from fedgmr.tasks.collation import classes_as_int64, stack, tensor_of
from fedgmr.tasks.samples import Batch, Places, Reading, Samples

Columns = tuple[str | Sequence[str], str]  # inputs (one: a tensor; several: a mapping), target
_TARGETS = ("label", "labels", "target", "targets", "y")  # names of columns that are taken for the target
_LARGE = 2 << 30  # bytes above which a dataset is read when it is needed
_CHUNK = 512  # samples read at once on the way into memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Samples that can be read by their places."""

    count: int
    read: Callable[[Places], Batch]
    targets: Tensor | None = None  # None: only reading tells
    memory: Samples | None = None  # all of them, where they are in memory already


def source_of(data: Any, where: str, columns: Columns | None = None) -> Source:
    """The samples of `data`, which the user gave as `where`."""
    if isinstance(data, Samples):
        return Source(count=len(data), read=lambda places: data[torch.from_numpy(places)], memory=data)
    if type(data) is TensorDataset and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, tuple):
        return _pair(data, where)
    if is_table(data):
        return _table(data, where, columns)
    _refuse_others(data, where)
    return _rows(data, where, columns)


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
    if source.memory is not None and not lazy:
        return source.memory
    few = np.arange(min(2, source.count))
    inputs, targets = source.read(few)
    if lazy is None:
        lazy = sum(tensor.nbytes for tensor in leaves(inputs)) * source.count > _LARGE * len(few)
    known = source.memory.targets if source.memory else source.targets
    if lazy:
        if known is None or not torch.equal(known[: len(few)], targets):
            known = torch.cat([source.read(places)[1] for places in _chunks(source.count)])
        return Samples(Reading(lambda places: source.read(places)[0]), known)
    everything = each(lambda tensor: tensor.new_empty((source.count, *tensor.shape[1:])), (inputs, targets))
    for places in _chunks(source.count):
        for room, part in zip(leaves(everything), leaves(source.read(places)), strict=True):
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


def _rows(data: Any, where: str, columns: Columns | None) -> Source:
    """A map-style dataset: (input, target) or a mapping of columns for every sample."""
    if not len(data):
        raise ValueError(f"{where} has 0 inputs and 0 targets: give as many of each, at least one.")
    first = _first(data, where)
    named: tuple[list[str], bool, str] | None = None
    if isinstance(first, Mapping):
        named = _columns(first, where, columns)
    elif not isinstance(first, tuple | list) or len(first) != 2:
        word = f"{len(first)} entries" if isinstance(first, tuple | list) else type(first).__name__
        raise ValueError(f"{where}[0] is {word}: let every sample be (input, target), or a mapping of columns.")

    def read(places: Places) -> Batch:
        items = [data[int(at)] for at in places]
        if named is None:
            inputs, answers = [item[0] for item in items], [item[1] for item in items]
        else:
            names, single, target = named
            inputs = [item[names[0]] if single else {name: item[name] for name in names} for item in items]
            answers = [item[target] for item in items]
        targets = classes_as_int64(answers, stack(answers, f"{where}'s targets"))
        return stack(inputs, f"{where}'s inputs"), targets

    return Source(count=len(data), read=read, targets=_known_targets(data))


def _table(data: Any, where: str, columns: Columns | None) -> Source:
    """A table of Hugging Face's `datasets`, or what behaves like one."""
    if not len(data):
        raise ValueError(f"{where} has 0 inputs and 0 targets: give as many of each, at least one.")
    names, single, target = _columns(data[0], where, columns)
    if data.format["type"] is None:
        data = data.with_format("numpy", columns=[*names, target])

    def read(places: Places) -> Batch:
        found = data[places.tolist()]
        parts = {name: _column(found[name], f"{where}[{name!r}]") for name in [*names, target]}
        answers = classes_as_int64(None, parts[target])
        return (parts[names[0]] if single else {name: parts[name] for name in names}), answers

    targets = classes_as_int64(None, _column(data.select_columns([target])[:][target], f"{where}[{target!r}]"))
    return Source(count=len(data), read=read, targets=targets)


def _column(values: Any, where: str) -> Tensor:
    found = stack(values, where) if isinstance(values, list) else tensor_of(values, where)
    assert isinstance(found, Tensor)
    return found


def _columns(sample: Mapping[str, Any], where: str, columns: Columns | None) -> tuple[list[str], bool, str]:
    """The names of the inputs, whether they are one tensor, and the name of the target."""
    have = f"{where} has the columns {', '.join(sample)}"
    say = "name them, as in columns=('image', 'label') or columns=(('input_ids', 'attention_mask'), 'label')"
    if columns is not None:
        if isinstance(columns, str) or len(columns) != 2 or not isinstance(columns[1], str):
            raise ValueError(f"columns is {columns!r}: give the inputs and the target, as in ('image', 'label').")
        single = isinstance(columns[0], str)
        names = [columns[0]] if isinstance(columns[0], str) else list(columns[0])
        missing = [name for name in [*names, columns[1]] if name not in sample]
        if missing or not names:
            raise ValueError(f"columns names {', '.join(missing) or 'no inputs'}: {have}; {say}.")
        return names, single, columns[1]
    targets = [name for name in sample if name in _TARGETS]
    inputs = [name for name in sample if name not in _TARGETS]
    texts = [name for name in inputs if isinstance(sample[name], str | None)]
    if len(targets) != 1 or not inputs or texts:
        why = f" ({texts[0]} is text)" if texts else ""
        raise ValueError(f"{have}{why}: {say}.")
    return inputs, len(inputs) == 1, targets[0]


def _first(data: Any, where: str) -> Any:
    """The first sample; refused where reading draws random numbers, because it would be another one every time."""
    before = _drawn_so_far()
    try:
        first = data[0]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"{where}[0] cannot be read ({error}): give a dataset that has sample i at index i."
        ) from error
    if _drawn_so_far() != before:
        raise ValueError(
            f"{where} draws random numbers while a sample is read, so it would differ from time to time: leave random "
            "transforms out, and give them as augment."
        )
    return first


def _drawn_so_far() -> tuple[object, ...]:
    """Equal as long as nobody draws from a generator that all share."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), str(np.random.get_state())


def _known_targets(data: Any) -> Tensor | None:
    """The targets that a dataset knows without reading its inputs."""
    if isinstance(data, Subset):
        whole = _known_targets(data.dataset)
        return None if whole is None else whole[torch.as_tensor(data.indices)]
    targets = getattr(data, "targets", None)
    if targets is None or getattr(data, "target_transform", None) is not None or len(targets) != len(data):
        return None
    return classes_as_int64(targets, tensor_of(targets, "targets"))


def is_table(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`, or behaves like one."""
    return all(hasattr(data, name) for name in ("column_names", "with_format", "select_columns", "__getitem__"))


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
