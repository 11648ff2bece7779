"""The groups of a model's channels (section 2.0, structured slicing), made of what one forward pass has joined.

A channel is a class of entries that are kept or dropped together: a layer's output, the inputs of the layers behind it,
the other side of a residual sum. Channels that are alike, because they appear as often in the same dimensions of the
same tensors, are a group, and a width keeps the same share of every group. Read next: `../widths.py`, the use.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedgmr.submodels.channels.calls import Axes, Call
from fedgmr.submodels.channels.classes import Classes, Dims, Entries
from fedgmr.submodels.channels.notes import Whole

Seen = tuple[str, str, Sequence[Dims], Sequence[Dims]]  # a call: name, layer, the entries of what it took and gave


@dataclass(frozen=True, kw_only=True)
class Group:
    """Channels that are alike, of which a width keeps a share."""

    size: int
    multiple: int = 1  # the number of kept channels is a whole multiple: a group norm divides them into equal groups


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelPlan:
    """The groups of a model, and which dimensions of its tensors run over them.

    Channels are numbered: those of the first group in their order, then those of the second, and so on.
    """

    groups: tuple[Group, ...]
    axes: Mapping[str, Axes]  # every parameter and buffer, by name
    norms: Mapping[str, Axes]  # the dimensions of its input that a normalisation layer covers, by path
    heads: Mapping[str, tuple[int, Tensor]]  # parameters with a row per output: their dimension, the output of each row
    whole: tuple[str, ...]  # which layers keep their full width, and why
    calls: tuple[Call, ...]  # of the forward pass; none where small modules need no other sizes than they name


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """What a forward pass has found: the entries of tensors, and which of them are one class."""

    classes: Classes
    tensors: Mapping[str, Dims]  # parameters and buffers
    parameters: frozenset[str]
    norms: Mapping[str, Dims]
    divided: Sequence[tuple[str, Entries, int]]  # layer, channels and number of groups of a group norm
    whole: Sequence[Whole]
    heads: Mapping[str, tuple[int, Tensor]]
    calls: Sequence[Seen]

    def plan(self) -> ChannelPlan:
        """The plan; what stays whole is now in class 0, which is never sliced."""
        sentences = dict[str, None]()
        for whole in self.whole:
            found = self.classes.find(whole.entries)
            if found.any() and np.isin(found, self._channels()).any():
                sentences[f"{whole.layer or 'the model'}: {whole.reason}"] = None
            self.classes.join(whole.entries, 0)
        for layer, entries, count in self.divided:
            if not self._divides(entries, count):
                sentences[f"{layer}: a group norm cannot divide what is left of its channels"] = None
                self.classes.join(entries, 0)
        groups, number = self._numbered()
        for _, entries, count in self.divided:
            for group, each in shares_along(groups, number[self.classes.find(entries)]).items():
                multiple = math.lcm(groups[group].multiple, count // math.gcd(count, each))
                groups[group] = replace(groups[group], multiple=multiple)

        def axes(dims: Dims) -> Axes:
            found = [torch.from_numpy(number[self.classes.find(entries)]) for entries in dims]
            return tuple(axis if bool((axis >= 0).any()) else None for axis in found)

        return ChannelPlan(
            groups=tuple(groups),
            axes={name: axes(dims) for name, dims in self.tensors.items()},
            norms={path: axes(dims) for path, dims in self.norms.items()},
            heads=self.heads,
            whole=tuple(sentences),
            calls=tuple(
                Call(name=name, layer=layer, inputs=tuple(map(axes, took)), outputs=tuple(map(axes, gave)))
                for name, layer, took, gave in self.calls
            ),
        )

    def without(self, call: int) -> "Findings":
        """The same, where the channels of what a call takes and gives, or else all that there are, stay whole."""
        name, layer, took, gave = self.calls[call]
        met = [entries for dims in (*took, *gave) for entries in dims]
        if not np.isin(self.classes.find(np.concatenate([*met, [0]])), channels := self._channels()).any():
            met = [channels]
        reason = f"{name} has sizes of its own"
        return replace(self, whole=[*self.whole, *(Whole(layer=layer, reason=reason, entries=e) for e in met)])

    def _alike(self) -> dict[tuple[object, ...], list[int]]:
        """The classes that are channels, those together that appear as often in the same dimensions."""
        places = defaultdict[int, list[tuple[str, int, int]]](list)
        for name, dims in self.tensors.items():
            for dim, entries in enumerate(dims):
                for found, count in zip(*np.unique(self.classes.find(entries), return_counts=True), strict=True):
                    places[int(found)].append((name, dim, int(count)))
        places.pop(0, None)
        alike = defaultdict[tuple[object, ...], list[int]](list)
        for found in sorted(places):
            # What no other tensor meets is no channel: rows of positions, say, that the batch was too short for.
            if len(places[found]) > 1 and any(name in self.parameters for name, _, _ in places[found]):
                alike[tuple(places[found])].append(found)
        return alike

    def _channels(self) -> Entries:
        return np.array([found for group in self._alike().values() for found in group], dtype=np.int64)

    def _numbered(self) -> tuple[list[Group], Entries]:
        """The groups, and the number of the channel that each class is, -1 for none."""
        alike = list(self._alike().values())
        number = np.full(len(self.classes), -1, dtype=np.int64)
        ordered = np.array([found for group in alike for found in group], dtype=np.int64)
        number[ordered] = np.arange(len(ordered))
        return [Group(size=len(group)) for group in alike], number

    def _divides(self, entries: Entries, count: int) -> bool:
        """Whether a group norm with `count` groups can divide any share of channels that is a whole multiple."""
        groups, number = self._numbered()
        axis = number[self.classes.find(entries)]
        parts = [groups[group].size * each for group, each in shares_along(groups, axis).items()]
        return all(part % count == 0 for part in (*parts, int((axis < 0).sum())))


def shares_along(groups: Sequence[Group], axis: Entries) -> dict[int, int]:
    """For each group in a dimension the number of entries that each of its channels has there."""
    ends = np.cumsum([group.size for group in groups])
    found = Counter(np.searchsorted(ends, axis[axis >= 0], side="right").tolist())
    return {group: count // groups[group].size for group, count in sorted(found.items())}
