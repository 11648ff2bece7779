"""The VALUES and UPDATE objects: the weights of a range of levels in level order, out to a client and back.

Level order makes sub-model l a prefix and lets the server share one object per gap between neighbouring levels in
use. The model's buffers (batch-norm statistics) travel with level 0, always as float32. The body is the buffers,
then the values. An UPDATE has the values of levels 0 to the client's own, after a report of fixed size, which is zero
where the client did not validate. It is the one object a stranger can send to the server, so reading it demands
everything the server knows about the task.
"""

import dataclasses
import math
import struct

from fedgmr.wire.envelope import Expected, Limits
from fedgmr.wire.header import ENVELOPE_BYTES, Header, Kind, Stamp
from fedgmr.wire.precision import FloatArray, ValueType
from fedgmr.wire.refusals import Reason, Refused

_REPORT = struct.Struct("<dQ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A client's validation of the model it received."""

    metric_sum: float  # over the samples
    samples: int  # at least one

    def check(self) -> None:
        """Refuse a report that no client could have made."""
        if not math.isfinite(self.metric_sum):
            raise Refused(Reason.NON_FINITE, f"the report's metric sum is {self.metric_sum}")
        if not 1 <= self.samples < 2**64:
            raise Refused(Reason.REPORT, f"a report on {self.samples} samples; leave it out where there are none")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Values:
    """A decoded VALUES or UPDATE object."""

    header: Header
    values: FloatArray  # weights of levels first to last, in level order; writable
    buffers: FloatArray  # the model's; empty unless level 0 is covered
    report: Report | None = None  # the client's validation, if it made one; only in an UPDATE


def values_bytes(count: int, buffers: int, value_type: ValueType = ValueType.FP32) -> int:
    """Exact length of a VALUES object with so many values and buffer entries."""
    return ENVELOPE_BYTES + ValueType.FP32.width * buffers + value_type.width * count


def update_bytes(count: int, buffers: int, value_type: ValueType = ValueType.FP32) -> int:
    """Exact length of an UPDATE object with so many values and buffer entries, with or without a report."""
    return _REPORT.size + values_bytes(count, buffers, value_type)


def encode_values(
    values: FloatArray,
    *,
    stamp: Stamp,
    first: int,
    last: int,
    value_type: ValueType = ValueType.FP32,
    buffers: FloatArray | None = None,
) -> bytes:
    """Write the weights of levels first to last, one-dimensional float32 in level order; with level 0 also buffers.

    Raises:
        Refused: A value is not finite or does not fit the value type, or buffers travel without level 0.
    """
    header = Header(kind=Kind.VALUES, value_type=value_type, first=first, last=last, stamp=stamp)
    return _sealed(header, values, buffers)


def encode_update(
    values: FloatArray,
    *,
    stamp: Stamp,
    last: int,
    value_type: ValueType = ValueType.FP32,
    buffers: FloatArray | None = None,
    report: Report | None = None,
) -> bytes:
    """Write what a client of level `last` sends back; the stamp names it and the versions it started from.

    Raises:
        Refused: A value is not finite or does not fit the value type, or the stamp names no client.
    """
    written = bytes(_REPORT.size)
    if report is not None:
        report.check()
        written = _REPORT.pack(report.metric_sum, report.samples)
    header = Header(kind=Kind.UPDATE, value_type=value_type, first=0, last=last, stamp=stamp)
    return _sealed(header, values, buffers, written)


def decode_values(data: bytes | bytearray | memoryview, *, expected: Expected, limits: Limits) -> Values:
    """Read the weights of a range of levels from an object that comes from outside.

    Raises:
        Refused: The bytes are not the values that are expected.
    """
    return _opened(data, Kind.VALUES, expected, limits)


def decode_update(data: bytes | bytearray | memoryview, *, expected: Expected) -> Values:
    """Read what a client sent back.

    All of `expected` must be named (`first` is always 0), or a stranger would choose what is left open; count and
    buffers are the limits as well.

    Raises:
        Refused: The bytes are not the update that is expected.
    """
    for field in dataclasses.fields(expected):
        if field.name != "first" and getattr(expected, field.name) is None:
            raise ValueError(f"expected.{field.name} is None; name what was dispatched to the client")
    assert expected.count is not None
    assert expected.buffers is not None
    return _opened(data, Kind.UPDATE, expected, Limits(values=expected.count, buffers=expected.buffers))


def _sealed(header: Header, values: FloatArray, buffers: FloatArray | None, report: bytes = b"") -> bytes:
    """The object with a body of report, buffers and values; buffers come first, so that both stay aligned."""
    assert header.value_type is not None  # the rules of the header
    numbers = header.value_type.write(values)
    header = dataclasses.replace(header, count=values.size, buffers=0 if buffers is None else buffers.size)
    return header.seal([report, b"" if buffers is None else ValueType.FP32.write(buffers), numbers])


def _opened(data: bytes | bytearray | memoryview, kind: Kind, expected: Expected, limits: Limits) -> Values:
    def size_of(header: Header, _: memoryview) -> int:
        limits.check(header)
        assert header.value_type is not None  # the rules of the header
        size = update_bytes if kind is Kind.UPDATE else values_bytes
        return size(header.count, header.buffers, header.value_type)

    header, body = expected.open(data, kind=kind, size_of=size_of)
    assert header.value_type is not None
    start = _REPORT.size if kind is Kind.UPDATE else 0
    report = None
    if any(body[:start]):
        metric_sum, samples = _REPORT.unpack(body[:start])
        report = Report(metric_sum=metric_sum, samples=samples)
        report.check()
    split = start + ValueType.FP32.width * header.buffers
    buffers = ValueType.FP32.read(body[start:split])
    values = header.value_type.read(body[split:])
    assert values.size == header.count
    return Values(header=header, values=values, buffers=buffers, report=report)
