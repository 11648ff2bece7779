"""Tables of Hugging Face's `datasets`, and the columns of samples that have names.

The package is not imported: whatever has these methods is a table. Read next: `given.py`.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgmr.settings.refusals import say_in_one_line
from fedgmr.tasks.collation import classes_as_int64, stack, tensor_of
from fedgmr.tasks.samples import Batch, Places, Source

Columns = tuple[str | Sequence[str], str]  # inputs (one: a tensor; several: a mapping), target
_TARGETS = ("label", "labels", "target", "targets", "y")  # names of columns that are taken for the target


def is_table(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`, or behaves like one."""
    return all(hasattr(data, name) for name in ("column_names", "with_format", "select_columns", "__getitem__"))


def table_source(data: Any, where: str, columns: Columns | None, users: Any) -> Source:
    """A table of Hugging Face's `datasets`, or what behaves like one."""
    if not len(data):
        raise ValueError(f"{where} has 0 inputs and 0 targets: give as many of each, at least one.")
    first = first_sample(data, where)
    names, single, target = name_columns(first, where, columns, users)
    data = data.select_columns([*names, target])
    if data.format["type"] is None and not any(hasattr(first[name], "getbands") for name in names):  # no images
        data = data.with_format("numpy")

    def read(places: Places) -> Batch:
        found = data[places.tolist()]
        parts = {name: _column(found[name], f"{where}[{name!r}]") for name in [*names, target]}
        answers = classes_as_int64(None, parts[target])
        return (parts[names[0]] if single else {name: parts[name] for name in names}), answers

    targets = classes_as_int64(None, _column(data.select_columns([target])[:][target], f"{where}[{target!r}]"))
    return Source(count=len(data), read=read, targets=targets)


def name_columns(
    sample: Mapping[str, Any], where: str, columns: Columns | None, users: Any
) -> tuple[list[str], bool, str]:
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
    inputs = [name for name in sample if name not in (*_TARGETS, users if isinstance(users, str) else None)]
    texts = [name for name in inputs if isinstance(sample[name], str | None)]
    if len(targets) != 1 or not inputs or texts:
        why = f" ({texts[0]} is text)" if texts else ""
        raise ValueError(f"{have}{why}: {say}.")
    return inputs, len(inputs) == 1, targets[0]


def first_sample(data: Any, where: str) -> Any:
    """The first sample; refused where reading draws random numbers, because it would be another one every time."""
    before = _drawn_so_far()
    try:
        first = data[0]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"{where}[0] cannot be read ({say_in_one_line(error)}): give a dataset that has sample i at index i."
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


def _column(values: Any, where: str) -> Tensor:
    found = stack(values, where) if isinstance(values, list) else tensor_of(values, where)
    assert isinstance(found, Tensor)
    return found
