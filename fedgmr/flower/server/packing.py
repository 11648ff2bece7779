"""Tasks as objects of the wire format: each object is made once per tick and shared by the tasks that need it.

`fedgmr/fleets/multicast.py` says which objects there are, so the sizes are those that `fleets/network.py` charges in a
simulation. Without IMS tasks of the same level share their object here, because Flower sends equal objects once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedgmr import wire
from fedgmr.exchange import ClientTask
from fedgmr.fleets.multicast import KnownMaps, Span, plan_transmissions
from fedgmr.flower.messages import Piece
from fedgmr.flower.terms import Terms


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedTask:
    """A task with all its objects."""

    task: ClientTask
    values: list[Piece] = field(default_factory=list)
    maps: list[Piece] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes on the client's downlink."""
        return sum(len(piece.data) for piece in (*self.values, *self.maps))


def pack_tasks(tasks: Sequence[ClientTask], known: KnownMaps, terms: Terms) -> list[PackedTask]:
    """Pack tasks that are dispatched together and cut from one model; `known` are the maps that clients hold."""
    if not tasks:
        return []
    largest = max(tasks, key=lambda task: task.level)
    assert all(task.model is largest.model for task in tasks), "tasks dispatched together share their model"
    stamp = wire.Stamp(run=terms.run, version=largest.version, map_version=largest.map_version)
    sizes, in_order = largest.levels.sizes, _array(largest.levels.pack(largest.model, largest.level))

    @cache  # each object is made once
    def values(span: Span) -> Piece:
        first, last = span
        data = wire.encode_values(
            in_order[sizes[first - 1] if first else 0 : sizes[last]],
            stamp=stamp,
            first=first,
            last=last,
            value_type=terms.value_type,
            buffers=None if first else _array(largest.buffers),
        )
        return Piece(span=span, data=data)

    @cache
    def level_map(span: Span) -> Piece:
        levels = largest.levels.levels.cpu().numpy()
        return Piece(span=span, data=wire.encode_map(levels, stamp=stamp, first=span[0], last=span[1]))

    packed = {task.client: PackedTask(task=task) for task in tasks}
    for transmission in plan_transmissions(tasks, ims=terms.ims):
        for receiver in transmission.receivers:
            packed[receiver.client].values.append(values(transmission.span))
            part = transmission.lacking(receiver, known)
            if part is not None:
                packed[receiver.client].maps.append(level_map(part))
    return list(packed.values())


def shared_size(packed: Iterable[PackedTask]) -> int:
    """Bytes of the distinct objects in several tasks."""
    distinct = {id(piece): len(piece.data) for task in packed for piece in (*task.values, *task.maps)}
    return sum(distinct.values())


def _array(values: Tensor) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = values.cpu().numpy()
    return array
