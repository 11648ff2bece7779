"""The notes of a followed forward pass: the entries of every tensor, and what stays whole.

Read next: `operations.py`, which takes them; `rules.py`, which extends them; `plan.py`, which is made of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedgmr.submodels.channels.classes import Classes, Dims, Entries


@dataclass(frozen=True, kw_only=True, eq=False)
class Whole:
    """Entries that stay whole, and why."""

    layer: str
    reason: str
    entries: Entries


class Notes:
    """The entries of the tensors of one forward pass; `stored` are the model's parameters and buffers."""

    def __init__(self, stored: Mapping[str, Tensor]) -> None:
        self.classes = Classes()
        self.layers = [""]  # the modules that compute, the innermost last
        self.whole: list[Whole] = []
        self.looked_up: list[Entries] = []  # the rows of embeddings
        self.divided: list[tuple[str, Entries, int]] = []  # layer, channels and number of groups of a group norm
        self._known: dict[int, tuple[Tensor, Dims]] = {}  # by id; the tensor is kept, so that the id stays its own
        for tensor in stored.values():
            self.set(tensor, self.new(tensor))

    def set(self, tensor: Tensor, dims: Dims) -> None:
        """Note the entries of a tensor."""
        assert tuple(map(len, dims)) == tuple(tensor.shape)
        self._known[id(tensor)] = tensor, dims

    def dims(self, tensor: Tensor) -> Dims:
        """The entries of a tensor; one that is neither stored nor computed stays whole."""
        if id(tensor) not in self._known:
            self.keep_new(tensor, "it uses a tensor that is neither a parameter nor a buffer")
        return self._known[id(tensor)][1]

    @property
    def layer(self) -> str:
        """The path of the module that computes."""
        return self.layers[-1]

    def keep_whole(self, reason: str, entries: Entries) -> None:
        """Note entries that stay whole."""
        self.whole.append(Whole(layer=self.layer, reason=reason, entries=entries))

    def new(self, tensor: Tensor) -> Dims:
        """Entries of its own for a tensor."""
        return tuple(self.classes.new(size) for size in tensor.shape)

    def keep_new(self, tensor: Tensor, reason: str) -> None:
        """Note a tensor that stays whole."""
        self.set(tensor, self.new(tensor))
        for entries in self.dims(tensor):
            self.keep_whole(reason, entries)
