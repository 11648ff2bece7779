"""Single values of samples (tensors, arrays, images, numbers; also in tuples and mappings) to tensors of many.

Read next: `given.py`, which reads the samples.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgmr.settings.refusals import say_in_one_line
from fedgmr.submodels.inputs import Inputs

_NUMBERS = "give tensors or arrays of numbers of one type."


def stack(values: Sequence[Any], where: str) -> Inputs:
    """The values of several samples as tensors whose first dimension is the sample."""
    first = values[0]
    if isinstance(first, Mapping):
        return {str(key): stack([value[key] for value in values], f"{where}[{key!r}]") for key in first}
    if isinstance(first, tuple):
        return tuple(stack(part, f"{where}[{at}]") for at, part in enumerate(zip(*values, strict=True)))
    if type(first) in (bool, int, float):
        try:
            return torch.tensor(values)
        except (TypeError, ValueError, RuntimeError) as error:  # None or text among them, or too large a number
            raise ValueError(f"{where} make no tensor ({say_in_one_line(error)}): give a number for each.") from error
    tensors = [tensor_of(value, where) for value in values]
    shapes = {tuple(tensor.shape): None for tensor in tensors}
    if len(shapes) > 1:
        one, other, *_ = shapes
        raise ValueError(f"{where} has the shapes {one} and {other}: give all samples one shape, or pad them.")
    return torch.stack(tensors)


def tensor_of(value: Any, where: str) -> Tensor:
    """A tensor, an array, a column of a table or an image (then [channels, height, width]) as a tensor."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise ValueError(f"{where} is a sparse tensor: give it dense, by to_dense().")
        return value
    image = hasattr(value, "getbands")
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists in a list
        raise ValueError(f"{where} holds rows of different lengths: {_NUMBERS}") from error
    if array.dtype.kind not in "biufc":
        raise ValueError(f"{where} holds {_word(array) if array.ndim else type(value).__name__}: {_NUMBERS}")
    if image:
        array = np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    if any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings(action="ignore"):  # an array that cannot be written, which nobody does
        return torch.from_numpy(array) if array.ndim else torch.tensor(array[()])


def classes_as_int64(given: Any, targets: Tensor) -> Tensor:
    """Targets that were given as anything but a tensor: whole numbers as int64, which losses ask for."""
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    return targets if isinstance(given, Tensor) or not whole else targets.long()


def type_of(tensor: Tensor) -> str:
    """The type of a tensor's numbers in a word: `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _word(array: NDArray[Any]) -> str:
    if array.dtype != object:
        return f"entries of type {array.dtype}"
    types = {type(entry) for entry in array.flat}
    if any(issubclass(kind, Sequence | np.ndarray) and kind is not str for kind in types):
        return "rows of different lengths"
    return f"entries of type {' and '.join(sorted(kind.__name__ for kind in types))}"
