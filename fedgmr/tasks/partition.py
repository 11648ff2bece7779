"""Partitions: which training samples each client has, and in which order it walks them.

IID, Dirichlet(alpha) over the classes, or by user id. A client's sample order is a function of (seed, client, batches
consumed), so lazily batched training, a resume and a restarted real client all see the same mini-batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgmr.seeding import generator

Indices = NDArray[np.int64]
_REDRAWS = 1000
_CACHED_EPOCHS = 256


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The samples to deal out: indices into the training set with their labels and users."""

    indices: Indices
    labels: NDArray[np.int64] | None
    users: NDArray[np.int64] | None
    clients: int
    seed: int


class Partition(Protocol):
    """Deals samples out to clients."""

    kind: ClassVar[str]

    def deal(self, pool: Pool) -> list[Indices]:
        """One index array per client."""


@dataclass(frozen=True, kw_only=True)
class IID:
    """One permutation cut into equal parts."""

    kind: ClassVar[str] = "iid"
    min_samples: int = field(default=1, metadata={"at_least": 1, "help": "fewest samples a client may have"})

    def deal(self, pool: Pool) -> list[Indices]:
        """Equal random parts."""
        shuffled = generator(pool.seed, "partition").permutation(pool.indices)
        return _enough(np.array_split(shuffled, pool.clients), self.min_samples, "iid")


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Per class, the clients' shares are drawn from Dirichlet(alpha); small alpha means few classes per client."""

    kind: ClassVar[str] = "dirichlet"
    alpha: float = field(
        default=0.6, metadata={"above": 0, "help": "concentration; the smaller, the fewer classes per client"}
    )
    min_samples: int = field(
        default=20,
        metadata={
            "at_least": 1,
            "help": (
                "fewest samples a client may have; the shares are drawn again, up to 1,000 times, until all "
                "clients have this many"
            ),
        },
    )
    order: Literal["drawn", "ascending"] = field(
        default="drawn",
        metadata={
            "help": (
                "the clients' order: as drawn, or `ascending`: client 0 has the fewest samples and the last "
                "client the most"
            )
        },
    )
    draw: Literal["seeded", "legacy"] = field(
        default="seeded",
        metadata={
            "help": (
                "`legacy`: one draw of `numpy.random.RandomState(seed)`, consecutive samples of every class, "
                "never drawn again; with `ascending` and seed 0 the split of the paper's released code"
            )
        },
    )

    def deal(self, pool: Pool) -> list[Indices]:
        """Redraw up to 1,000 times until every client has enough samples; the legacy draw is made once."""
        if pool.labels is None:
            raise ValueError(
                "partition.kind is dirichlet: this task has no integer label per sample; use iid or by_user."
            )
        needed = self.min_samples * pool.clients
        if needed > len(pool.indices):
            raise ValueError(
                f"partition.min_samples is {self.min_samples}: {pool.clients} clients need {needed} samples, there are "
                f"{len(pool.indices)}; lower it or use fewer clients."
            )
        parts = self._drawn(pool, [pool.indices[pool.labels == label] for label in np.unique(pool.labels)])
        return parts if self.order == "drawn" else sorted(parts, key=len)

    def _drawn(self, pool: Pool, by_class: list[Indices]) -> list[Indices]:
        if self.draw == "legacy":
            draw = np.random.RandomState(pool.seed)
            dealt = [np.split(m, c) for c, m in zip(self._cuts(draw, pool, by_class), by_class, strict=True)]
            return _enough([np.concatenate(parts) for parts in zip(*dealt, strict=True)], self.min_samples, "dirichlet")
        for attempt in range(_REDRAWS):
            seeded = generator(pool.seed, "partition", attempt)
            cuts = self._cuts(seeded, pool, by_class)
            sizes = sum(np.diff(c, prepend=0, append=len(m)) for c, m in zip(cuts, by_class, strict=True))
            if np.min(sizes) >= self.min_samples:
                dealt = [np.split(seeded.permutation(m), c) for c, m in zip(cuts, by_class, strict=True)]
                return [np.sort(np.concatenate(parts)) for parts in zip(*dealt, strict=True)]
        raise ValueError(
            f"partition.alpha is {self.alpha}: after {_REDRAWS} draws some of {pool.clients} clients still had under "
            f"{self.min_samples} samples; raise alpha, lower partition.min_samples or use fewer clients."
        )

    def _cuts(
        self, draw: np.random.Generator | np.random.RandomState, pool: Pool, by_class: list[Indices]
    ) -> list[Indices]:
        return [
            (np.cumsum(draw.dirichlet(np.full(pool.clients, self.alpha)))[:-1] * len(members)).astype(np.int64)
            for members in by_class
        ]


@dataclass(frozen=True, kw_only=True)
class ByUser:
    """Whole users, consecutive ones to the same client; the last client takes the remainder."""

    kind: ClassVar[str] = "by_user"
    min_samples: int = field(default=1, metadata={"at_least": 1, "help": "fewest samples a client may have"})

    def deal(self, pool: Pool) -> list[Indices]:
        """Users // clients users each, the rest to the last client."""
        if pool.users is None:
            raise ValueError("partition.kind is by_user: it needs a user id per sample, which this task does not have.")
        users = np.unique(pool.users)
        each = len(users) // pool.clients
        if not each:
            raise ValueError(
                f"fleet.clients is {pool.clients}: the task has {len(users)} users; use at most that many clients."
            )
        bounds = [users[each * c] for c in range(pool.clients)]
        owner = np.searchsorted(np.array(bounds), pool.users, side="right") - 1
        return _enough([pool.indices[owner == c] for c in range(pool.clients)], self.min_samples, "by_user")


def _enough(parts: Sequence[Indices], least: int, kind: str) -> list[Indices]:
    smallest = min(len(part) for part in parts)
    if smallest < least:
        raise ValueError(
            f"partition.min_samples is {least}: the {kind} partition leaves a client {smallest} samples; "
            "lower it or use fewer clients."
        )
    return [np.sort(part) for part in parts]


class SampleOrder:
    """Every client's endless stream of mini-batches: epoch after epoch, each in a new random order, none short."""

    def __init__(self, parts: Sequence[Indices], *, seed: int, batch_size: int) -> None:
        self.parts, self.seed, self.batch_size = list(parts), seed, batch_size
        self._epoch = lru_cache(_CACHED_EPOCHS)(self._drawn)  # several threads may ask at once

    def batches(self, client: int, first: int, count: int) -> Indices:
        """Training indices [count, batch_size] of the client's mini-batches number `first` and on."""
        start, stop = first * self.batch_size, (first + count) * self.batch_size
        size = len(self.parts[client])
        pieces = []
        while start < stop:
            epoch, offset = divmod(start, size)
            taken = min(stop - start, size - offset)
            pieces.append(self._epoch(client, epoch)[offset : offset + taken])
            start += taken
        return np.concatenate(pieces).reshape(count, self.batch_size)

    def _drawn(self, client: int, epoch: int) -> Indices:
        return generator(self.seed, "order", client, epoch).permutation(self.parts[client])
