"""The checks of an object that arrives, before its body is looked at.

The order of the checks is the order of trust: what the header announces is held against the receiver's limits
and the length of the object before anything is allocated, then the checksum tells damage from malice, then
the stamp is compared.
"""

import dataclasses
import zlib
from collections.abc import Callable

from fedgmr.wire.header import CHECKSUM_BYTES, EVERYONE, HEADER_BYTES, Header, Kind
from fedgmr.wire.precision import ValueType
from fedgmr.wire.refusals import Reason, Refused


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The most a receiver is willing to hold; memory used by decoding is a small multiple of it."""

    values: int  # of one object; at most the coordinates of the model
    buffers: int  # buffer entries of one object

    def check(self, header: Header) -> None:
        """Refuse a header that announces more than the receiver is willing to hold."""
        if header.count > self.values:
            raise Refused(Reason.LIMIT, f"{header.count} values announced, limit {self.values}")
        if header.buffers > self.buffers:
            raise Refused(Reason.LIMIT, f"{header.buffers} buffer entries announced, limit {self.buffers}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """The object that the receiver dispatched or asked for; None where it takes what comes."""

    run: int  # the run that the receiver takes part in
    client: int  # the client that was asked (on the server), or the client itself
    version: int | None = None
    map_version: int | None = None
    first: int | None = None  # the lowest level
    last: int | None = None  # the highest level
    value_type: ValueType | None = None  # how values travel in this run
    count: int | None = None  # exactly how many values
    buffers: int | None = None  # exactly how many buffer entries

    def open(
        self, data: bytes | bytearray | memoryview, *, kind: Kind, size_of: Callable[[Header, memoryview], int]
    ) -> tuple[Header, memoryview]:
        """Open an object from outside, which must be of this kind, and return its header and body.

        `size_of` says from header and body, which is unchecked at that point, how long the object must be, or refuses.

        Raises:
            Refused: Anything is not as announced or not as expected.
        """
        view = memoryview(data).cast("B")
        header = Header.read(view)
        if header.kind is not kind:
            raise Refused(Reason.KIND, f"{header.kind.name} where {kind.name} is due")
        body = view[HEADER_BYTES:-CHECKSUM_BYTES]
        size = size_of(header, body)
        if len(view) != size:
            raise Refused(Reason.LENGTH, f"{len(view)} bytes where the header announces {size}")
        if zlib.crc32(view[:-CHECKSUM_BYTES]) != int.from_bytes(view[-CHECKSUM_BYTES:], "little"):
            raise Refused(Reason.CHECKSUM, "the bytes were damaged on the way")
        self._check(header)
        return header, body

    def _check(self, header: Header) -> None:
        stamp = header.stamp
        # Objects of a task are shared between clients; the rules of the header keep EVERYONE out of updates.
        client = self.client if stamp.client == EVERYONE else stamp.client
        late = self.version is not None and stamp.version < self.version
        checks: tuple[tuple[Reason, int | ValueType | None, int | ValueType | None], ...] = (
            (Reason.RUN, stamp.run, self.run),
            (Reason.CLIENT, client, self.client),
            (Reason.STALE if late else Reason.VERSION, stamp.version, self.version),
            (Reason.MAP_VERSION, stamp.map_version, self.map_version),
            (Reason.LEVEL, header.first, self.first),
            (Reason.LEVEL, header.last, self.last),
            (Reason.VALUE_TYPE, header.value_type, self.value_type),
            (Reason.COUNT, header.count, self.count),
            (Reason.BUFFERS, header.buffers, self.buffers),
        )
        for reason, found, due in checks:
            if due is not None and found != due:
                raise Refused(reason, f"{found} where {due} is due")
