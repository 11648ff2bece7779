"""The groups of channels that a walk over a model opens, joins and fixes, and the dimensions that run over them.

Groups go by the number under which they were opened. Which of them are one in the end is known only after the walk:
`plan.py` then numbers the groups that remain.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, fx

from fedgmr.submodels.channels.streams import refuse


@dataclass(frozen=True, kw_only=True)
class Group:
    """Channels that are kept or dropped together wherever they appear."""

    size: int
    fixed: bool = False  # never sliced: the model's input channels and its outputs
    heads: int = 1  # the group is heads x head_dim, and every head keeps the same subset
    multiple: int = 1  # the number of kept channels is a whole multiple: a group norm divides them into equal groups


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A dimension that runs over a group: index = (stack · size + channel) · repeat + s."""

    group: int
    repeat: int = 1  # entries per channel, where a flatten folded space into the dimension
    stacks: int = 1  # 3 for the rows of an attention's in-projection: queries, keys, values

    def spread(self, channels: Tensor) -> Tensor:
        """One entry per index of the dimension, given one per channel."""
        return channels.repeat_interleave(self.repeat).repeat(self.stacks)


Axes = tuple[Axis | None, ...]  # per dimension; None is never sliced (kernels, vocabulary, positions)


class OpenGroups:
    """The groups of a model during a walk over it, and the axes of its tensors."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.names = {id(tensor): name for name, tensor in tensors.items()}
        self.axes: dict[str, Axes] = {}
        self.opened: list[Group] = []
        self.parents: list[int] = []  # union-find: groups that turned out to be one

    def open(self, size: int, *, fixed: bool = False, heads: int = 1) -> int:
        """A new group."""
        self.opened.append(Group(size=size, fixed=fixed, heads=heads))
        self.parents.append(len(self.parents))
        return self.parents[-1]

    def root(self, group: int) -> int:
        """The group that represents all groups that `group` was joined with."""
        while self.parents[group] != group:
            group = self.parents[group]
        return group

    def fix(self, group: int) -> None:
        """Mark a group that is never sliced."""
        root = self.root(group)
        self.opened[root] = replace(self.opened[root], fixed=True)

    def divide(self, group: int, multiple: int) -> None:
        """Keep only whole multiples of so many channels of a group."""
        root = self.root(group)
        self.opened[root] = replace(self.opened[root], multiple=math.lcm(self.opened[root].multiple, multiple))

    def join(self, node: fx.Node, one: int, other: int) -> None:
        """Make two groups one; `node` is the operation that combines them."""
        one, other = sorted((self.root(one), self.root(other)))
        if self.opened[one].size != self.opened[other].size:
            sizes = f"{self.opened[one].size} and {self.opened[other].size}"
            refuse(node, f"it combines {sizes} channels", "give both operands the same number")
        self.parents[other] = one
        self.divide(one, self.opened[other].multiple)
        if self.opened[other].fixed:
            self.fix(one)

    def declare(self, node: fx.Node, tensor: Tensor | None, axes: Axes) -> None:
        """Note what the tensor's dimensions run over; a tensor used twice (tied weights) has to satisfy both uses."""
        if tensor is None:
            return
        if id(tensor) not in self.names:
            refuse(node, "it uses a tensor that is neither a parameter nor a buffer", "register it with the model")
        for old, new in zip(self.axes.setdefault(self.names[id(tensor)], axes), axes, strict=True):
            if old is not None and new is not None:
                if replace(old, group=0) != replace(new, group=0):
                    refuse(node, "it shares a tensor with a layer of another form", "give it a tensor of its own")
                self.join(node, old.group, new.group)
            elif (one := old or new) is not None:
                self.fix(one.group)
