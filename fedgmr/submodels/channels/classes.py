"""Entries of dimensions that must be kept or dropped together, as classes that are joined while a model is followed.

Every entry of every dimension of a parameter has a number. A class is known by its smallest number (union-find, for
whole arrays at once), and class 0 is never sliced. Read next: `rules.py`, which joins them.
"""

import numpy as np
import numpy.typing as npt

Entries = npt.NDArray[np.int64]  # one number per index of a dimension
Dims = tuple[Entries, ...]  # of one tensor


class Classes:
    """A partition of numbered entries."""

    def __init__(self) -> None:
        self._parents = np.zeros(1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._parents)

    def new(self, count: int) -> Entries:
        """So many entries, each in a class of its own; the entry of a dimension of size one is never sliced."""
        if count == 1:
            return np.zeros(1, dtype=np.int64)
        entries = np.arange(len(self._parents), len(self._parents) + count)
        self._parents = np.concatenate([self._parents, entries])
        return entries

    def find(self, entries: Entries) -> Entries:
        """The class of each entry."""
        found = self._parents[entries]
        while not np.array_equal(above := self._parents[found], found):
            found = above
        self._parents[entries] = found
        return found

    def join(self, one: Entries, other: Entries | int) -> None:
        """Make the classes of both, entry by entry, one."""
        one, other = np.broadcast_arrays(one, np.asarray(other))
        while True:
            ones, others = self.find(one), self.find(other)
            low, high = np.minimum(ones, others), np.maximum(ones, others)
            if np.array_equal(low, high):
                return
            np.minimum.at(self._parents, high, low)
