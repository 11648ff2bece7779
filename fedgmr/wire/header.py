"""The 52 bytes every object begins with.

Little-endian, fixed size, versioned. A body and a checksum follow. The rules that tie the fields together are
checked when writing as well as when reading, so that no object leaves that its receiver would refuse. Read next:
`envelope.py`, the checks of an object that arrives.
"""

import dataclasses
import enum
import struct
import zlib
from collections.abc import Sequence

from fedgmr.wire.precision import ValueType
from fedgmr.wire.refusals import Reason, Refused

_MAGIC = b"FGMR"
FORMAT = 1
EVERYONE = 2**32 - 1  # the client id of an object that several clients share
ABOVE = 255  # the level of a coordinate that no known part of the map keeps; hence 254 is the highest level

# magic, format, kind, value type, first, last, zero, client, run, version, map version, count, buffers
_LAYOUT = struct.Struct("<4sHBBBBHI4QI")
HEADER_BYTES = _LAYOUT.size
CHECKSUM_BYTES = 4
ENVELOPE_BYTES = HEADER_BYTES + CHECKSUM_BYTES

_VALUE_TYPES = (None, ValueType.FP32, ValueType.FP16, ValueType.BF16)  # by code


class Kind(enum.IntEnum):
    """The kinds of objects."""

    MAP = 1
    VALUES = 2
    UPDATE = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stamp:
    """The run and the state that an object belongs to."""

    run: int  # 64 bits
    client: int = EVERYONE  # the sender of an update; the addressee of a task's object, or EVERYONE
    version: int  # the tick of the global model
    map_version: int  # of the level map that orders the values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The fields of an object's header."""

    kind: Kind
    value_type: ValueType | None  # how its values travel; None for a map
    first: int  # the lowest level covered
    last: int  # the highest level covered
    stamp: Stamp
    count: int = 0  # values in the body; for a map, the coordinates of the whole model
    buffers: int = 0  # entries of the model's buffers in the body

    @classmethod
    def read(cls, data: bytes | bytearray | memoryview) -> "Header":
        """Read the header of an object, to see what arrived; the functions `decode_*` check the checksum and the stamp.

        Raises:
            Refused: Too short, not an object of this format, or fields that contradict each other.
        """
        if len(data) < HEADER_BYTES:
            raise Refused(Reason.LENGTH, f"{len(data)} bytes are less than a header of {HEADER_BYTES}")
        magic, form, kind, code, first, last, reserved, *rest = _LAYOUT.unpack_from(data)
        client, run, version, map_version, count, buffers = rest
        if magic != _MAGIC:
            raise Refused(Reason.MAGIC, f"begins with {magic!r} instead of {_MAGIC!r}")
        if form != FORMAT:
            raise Refused(Reason.FORMAT, f"format {form}; this release reads format {FORMAT}")
        if kind not in Kind.__members__.values():
            raise Refused(Reason.KIND, f"unknown kind {kind}")
        if code >= len(_VALUE_TYPES):
            raise Refused(Reason.VALUE_TYPE, f"unknown value type {code}")
        if reserved:
            raise Refused(Reason.RESERVED, "reserved header bytes are not zero")
        header = cls(
            kind=Kind(kind),
            value_type=_VALUE_TYPES[code],
            first=first,
            last=last,
            stamp=Stamp(run=run, client=client, version=version, map_version=map_version),
            count=count,
            buffers=buffers,
        )
        header._check_rules()
        return header

    def seal(self, body: Sequence[bytes | memoryview]) -> bytes:
        """Close an object: header, body and checksum joined by one allocation.

        Raises:
            Refused: The fields contradict each other.
            ValueError: A field does not fit its width.
        """
        self._check_rules()
        kind = (_MAGIC, FORMAT, self.kind, _VALUE_TYPES.index(self.value_type), self.first, self.last, 0)
        stamp = (self.stamp.client, self.stamp.run, self.stamp.version, self.stamp.map_version)
        try:
            pieces = [_LAYOUT.pack(*kind, *stamp, self.count, self.buffers), *body]
        except struct.error as error:
            raise ValueError(
                f"{self} does not fit the wire format ({error}); run, versions and count are 64 bits"
            ) from error
        checksum = 0
        for piece in pieces:
            checksum = zlib.crc32(piece, checksum)
        return b"".join([*pieces, checksum.to_bytes(CHECKSUM_BYTES, "little")])

    def _check_rules(self) -> None:
        kind = self.kind
        if not 0 <= self.first <= self.last < ABOVE:
            raise Refused(Reason.LEVEL, f"levels {self.first} to {self.last} are no range within 0 to {ABOVE - 1}")
        if (self.value_type is None) != (kind is Kind.MAP):
            raise Refused(Reason.VALUE_TYPE, f"{kind.name} with value type {self.value_type}")
        if kind is Kind.UPDATE and self.first > 0:
            raise Refused(Reason.LEVEL, f"an update covers all levels up to its own, not from level {self.first}")
        if self.buffers and (kind is Kind.MAP or self.first > 0):
            raise Refused(
                Reason.BUFFERS, f"buffers travel with the values of level 0, not with {kind.name} from {self.first}"
            )
        if kind is Kind.UPDATE and self.stamp.client == EVERYONE:
            raise Refused(Reason.CLIENT, "an update names the client that sends it")
