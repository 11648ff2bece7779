"""Incremental Model Splitting (IMS): which objects leave the server for the clients of one dispatch.

Sub-models are nested, so with IMS one object per gap between neighbouring levels in use is sent once, to every client
at that level or above. Without IMS every client is sent an object of its own, or all clients at a level share one.
Read next: `network.py`, which turns the objects into seconds, and `fedgmr/flower/server/packing.py`, which turns them
into bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedgmr.exchange import Shipment

Span = tuple[int, int]  # the first and the last level of an object
KnownMaps = Mapping[int, tuple[int, int]]  # by client: the level map it holds, as (version, highest level)


@dataclass(frozen=True, kw_only=True, eq=False)
class Transmission:
    """One object that leaves the server, and who receives it."""

    span: Span
    receivers: Sequence[Shipment]

    def lacking(self, receiver: Shipment, known: KnownMaps) -> Span | None:
        """The part of the level map, for the levels of this object, that a receiver has to be sent; None: no part."""
        first, last = self.span
        version, highest = known.get(receiver.client, (-1, -1))
        if version == receiver.map_version:
            first = max(first, highest + 1)
        return None if receiver.levels.implied or first > last else (first, last)


def plan_transmissions(shipments: Sequence[Shipment], *, ims: bool, shared: bool = False) -> list[Transmission]:
    """The objects for shipments that leave together, in the order in which they leave.

    `shared`: without IMS, one object per level in use.
    """
    if not (ims or shared):
        return [Transmission(span=(0, shipment.level), receivers=[shipment]) for shipment in shipments]
    lasts = sorted({shipment.level for shipment in shipments})
    firsts = [0, *(last + 1 for last in lasts)] if ims else [0] * len(lasts)
    return [
        Transmission(
            span=(first, last), receivers=[s for s in shipments if s.level == last or (ims and s.level > last)]
        )
        for first, last in zip(firsts, lasts, strict=False)
    ]
