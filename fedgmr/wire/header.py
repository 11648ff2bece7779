"""The 52 bytes every object begins with.

Little-endian, fixed size, versioned. The rules that tie the fields together are checked when writing as well
as when reading, so that no object leaves that its receiver would refuse. Next: `envelope.py`, which puts a
body and a checksum behind it.
"""

from __future__ import annotations

import dataclasses
import enum
import struct

from fedgmr.wire.precision import ValueType
from fedgmr.wire.refusals import Reason, Refused

MAGIC = b"FGMR"
FORMAT = 1
EVERYONE = 2**32 - 1
"""The client id of an object that is shared by several clients."""
ABOVE = 255
"""The level of a coordinate that no known part of the map keeps; hence 254 is the highest level."""

# magic, format, kind, value type, first, last, zero, client, run, version, map version, count, buffers
_LAYOUT = struct.Struct("<4sHBBBBHI4QI")
HEADER_BYTES = _LAYOUT.size

_VALUE_TYPE_CODES: dict[ValueType | None, int] = {
    None: 0,
    ValueType.FP32: 1,
    ValueType.FP16: 2,
    ValueType.BF16: 3,
}
_VALUE_TYPES = {code: value_type for value_type, code in _VALUE_TYPE_CODES.items()}


class Kind(enum.IntEnum):
    """What an object carries."""

    MAP = 1
    VALUES = 2
    UPDATE = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stamp:
    """To which run and state an object belongs.

    Attributes:
        run: The run, 64 bits.
        client: The sender of an update; the addressee of a task's object, or `EVERYONE`.
        version: The tick of the global model.
        map_version: The version of the level map that orders the values.
    """

    run: int
    client: int = EVERYONE
    version: int
    map_version: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The fields of an object's header.

    Attributes:
        kind: What the object carries.
        value_type: How its values travel; None for a map.
        first: The lowest level covered.
        last: The highest level covered.
        stamp: Run, client, version and map version.
        count: Values in the body; for a map, the coordinates of the whole model.
        buffers: Entries of the model's buffers in the body.
    """

    kind: Kind
    value_type: ValueType | None
    first: int
    last: int
    stamp: Stamp
    count: int
    buffers: int


def write_header(header: Header) -> bytes:
    """Lay out a header.

    Raises:
        Refused: The fields contradict each other.
        ValueError: A field does not fit its width.
    """
    _check_rules(header)
    code = _VALUE_TYPE_CODES[header.value_type]
    what = (MAGIC, FORMAT, header.kind, code, header.first, header.last, 0)
    stamp = (header.stamp.client, header.stamp.run, header.stamp.version, header.stamp.map_version)
    try:
        return _LAYOUT.pack(*what, *stamp, header.count, header.buffers)
    except struct.error as error:
        raise ValueError(
            f"{header} does not fit the wire format ({error}); run, versions and count are 64 bits"
        ) from error


def read_header(data: bytes | bytearray | memoryview) -> Header:
    """Read the header of an object whose body may still be anything.

    Use it to see what arrived; only `decode_map`, `decode_values` and `decode_update` check the checksum and
    the stamp.

    Raises:
        Refused: Too short, not an object of this format, or fields that contradict each other.
    """
    if len(data) < HEADER_BYTES:
        raise Refused(Reason.LENGTH, f"{len(data)} bytes are less than a header of {HEADER_BYTES}")
    magic, form, kind, code, first, last, reserved, *rest = _LAYOUT.unpack_from(data)
    client, run, version, map_version, count, buffers = rest
    if magic != MAGIC:
        raise Refused(Reason.MAGIC, f"begins with {magic!r} instead of {MAGIC!r}")
    if form != FORMAT:
        raise Refused(Reason.FORMAT, f"format {form}; this release reads format {FORMAT}")
    if kind not in Kind.__members__.values():
        raise Refused(Reason.KIND, f"unknown kind {kind}")
    if code not in _VALUE_TYPES:
        raise Refused(Reason.VALUE_TYPE, f"unknown value type {code}")
    if reserved:
        raise Refused(Reason.RESERVED, "reserved header bytes are not zero")
    header = Header(
        kind=Kind(kind),
        value_type=_VALUE_TYPES[code],
        first=first,
        last=last,
        stamp=Stamp(run=run, client=client, version=version, map_version=map_version),
        count=count,
        buffers=buffers,
    )
    _check_rules(header)
    return header


def _check_rules(header: Header) -> None:
    kind = header.kind
    if not 0 <= header.first <= header.last < ABOVE:
        raise Refused(Reason.LEVEL, f"levels {header.first} to {header.last} are no range within 0 to {ABOVE - 1}")
    if (header.value_type is None) != (kind is Kind.MAP):
        raise Refused(Reason.VALUE_TYPE, f"{kind.name} with value type {header.value_type}")
    if kind is Kind.UPDATE and header.first > 0:
        raise Refused(Reason.LEVEL, f"an update covers all levels up to its own, not from level {header.first}")
    if header.buffers and (kind is Kind.MAP or header.first > 0):
        raise Refused(
            Reason.BUFFERS,
            f"buffers travel with the values of level 0, not with {kind.name} from {header.first}",
        )
    if kind is Kind.UPDATE and header.stamp.client == EVERYONE:
        raise Refused(Reason.CLIENT, "an update names the client that sends it")
