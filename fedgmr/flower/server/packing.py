"""Tasks as objects of the wire format: what is packed once per tick and shared, and what each client lacks of the map.

With IMS there is one VALUES object per gap between neighbouring levels in use among the tasks dispatched together,
otherwise one per level; a MAP object goes only to clients that do not have that part. Knows nothing of Flower. The same
sizes as `fleets/network.py` charges in a simulation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedgmr import wire
from fedgmr.exchange import ClientTask
from fedgmr.fleets.multicast import KnownMaps, Span, plan_transmissions


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """One object, and the levels it covers."""

    span: Span
    data: bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Parcel:
    """All objects of one task."""

    task: ClientTask
    values: list[Piece] = field(default_factory=list)
    maps: list[Piece] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes on the client's downlink."""
        return sum(len(piece.data) for piece in (*self.values, *self.maps))


def pack_tasks(
    tasks: Sequence[ClientTask], known: KnownMaps, *, run: int, ims: bool, value_type: wire.ValueType
) -> list[Parcel]:
    """One parcel per task; what tasks share is the same object in each.

    Args:
        tasks: dispatched together, all cut from one model.
        known: the maps that clients hold.
        run: stamped on every object.
        ims: one object per gap between the levels in use, instead of one per level.
        value_type: how values travel.
    """
    if not tasks:
        return []
    bench = _PackingBench(tasks, run, value_type)
    parcels = {task.client: Parcel(task=task) for task in tasks}
    for transmission in plan_transmissions(tasks, ims=ims):
        span = transmission.span
        for receiver in transmission.receivers:
            parcel, part = parcels[receiver.client], transmission.lacking(receiver, known)
            parcel.values.append(Piece(span=span, data=bench.values(span)))
            if part is not None:
                parcel.maps.append(Piece(span=part, data=bench.part(part)))
    return list(parcels.values())


def shared_size(parcels: Iterable[Parcel]) -> int:
    """Bytes of the distinct objects in several parcels."""
    distinct = {id(piece.data): len(piece.data) for p in parcels for piece in (*p.values, *p.maps)}
    return sum(distinct.values())


class _PackingBench:
    """Makes each object once."""

    def __init__(self, tasks: Sequence[ClientTask], run: int, value_type: wire.ValueType) -> None:
        self.task = max(tasks, key=lambda task: task.level)
        assert all(task.model is self.task.model for task in tasks), "tasks dispatched together share their model"
        self.value_type = value_type
        self.stamp = wire.Stamp(run=run, version=self.task.version, map_version=self.task.map_version)
        packed = self.task.levels.pack(self.task.model, self.task.level)
        self.packed: npt.NDArray[np.float32] = packed.cpu().numpy()
        self.buffers: npt.NDArray[np.float32] = self.task.buffers.cpu().numpy()
        self._values: dict[Span, bytes] = {}
        self._parts: dict[Span, bytes] = {}

    def values(self, span: Span) -> bytes:
        if span not in self._values:
            (first, last), sizes = span, self.task.levels.sizes
            self._values[span] = wire.encode_values(
                self.packed[sizes[first - 1] if first else 0 : sizes[last]],
                stamp=self.stamp,
                first=first,
                last=last,
                value_type=self.value_type,
                buffers=self.buffers if first == 0 else None,
            )
        return self._values[span]

    def part(self, span: Span) -> bytes:
        if span not in self._parts:
            levels = self.task.levels.levels.cpu().numpy()
            self._parts[span] = wire.encode_map(levels, stamp=self.stamp, first=span[0], last=span[1])
        return self._parts[span]
