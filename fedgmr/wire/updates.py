"""The UPDATE object: what a client sends back.

Values only, for levels 0 to its own; the server knows the map it dispatched. The body is a report of fixed
size, zero where the client did not validate, then buffers and values as in `values.py`. An update is the one
object a stranger can send to the server, so reading it demands everything the server knows about the task.
"""

from __future__ import annotations

import dataclasses
import math
import struct

from fedgmr.wire.envelope import Expected, Limits, check_limits, seal, unseal
from fedgmr.wire.header import Header, Kind, Stamp
from fedgmr.wire.precision import FloatArray, ValueType
from fedgmr.wire.refusals import Reason, Refused
from fedgmr.wire.values import read_body, values_bytes, write_body

_REPORT = struct.Struct("<dQ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A client's validation of the model it trained.

    Attributes:
        metric_sum: The metric summed over the samples.
        samples: How many samples, at least one.
    """

    metric_sum: float
    samples: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """A decoded UPDATE object.

    Attributes:
        header: What the object said of itself.
        values: Weights of levels 0 to the client's, in level order; writable.
        buffers: The model's buffers.
        report: The client's validation, if it made one.
    """

    header: Header
    values: FloatArray
    buffers: FloatArray
    report: Report | None


def update_bytes(count: int, buffers: int, value_type: ValueType = ValueType.FP32) -> int:
    """Exact length of an UPDATE object, with or without a report.

    Args:
        count: How many values.
        buffers: How many buffer entries.
        value_type: How the values travel.
    """
    return _REPORT.size + values_bytes(count, buffers, value_type)


def encode_update(
    values: FloatArray,
    *,
    stamp: Stamp,
    last: int,
    value_type: ValueType = ValueType.FP32,
    buffers: FloatArray | None = None,
    report: Report | None = None,
) -> bytes:
    """Write what a client sends back.

    Args:
        values: The weights of levels 0 to `last` in level order, one-dimensional float32.
        stamp: Run, the client itself, and the version and map version it started from.
        last: The client's level.
        value_type: How the values travel.
        buffers: The model's buffers.
        report: The client's validation, if it made one.

    Raises:
        Refused: A value is not finite or does not fit the value type, or the stamp names no client.
    """
    header = Header(
        kind=Kind.UPDATE,
        value_type=value_type,
        first=0,
        last=last,
        stamp=stamp,
        count=values.size,
        buffers=0 if buffers is None else buffers.size,
    )
    return seal(header, [_write_report(report), *write_body(values, buffers, value_type)])


def decode_update(data: bytes | bytearray | memoryview, *, expected: Expected) -> Update:
    """Read what a client sent back.

    Args:
        data: The object, from outside.
        expected: The task the client was given. All of it must be named (`first` is always 0), or a stranger
            would choose what is left open; count and buffers are the limits as well.

    Raises:
        Refused: The bytes are not the update that is expected.
    """
    for field in dataclasses.fields(expected):
        if field.name != "first" and getattr(expected, field.name) is None:
            raise ValueError(f"expected.{field.name} is None; name what was dispatched to the client")
    assert expected.count is not None
    assert expected.buffers is not None
    limits = Limits(values=expected.count, buffers=expected.buffers)

    def size_of(header: Header, _: memoryview) -> int:
        check_limits(header, limits)
        assert header.value_type is not None  # the rules of the header
        return update_bytes(header.count, header.buffers, header.value_type)

    header, body = unseal(data, kind=Kind.UPDATE, expected=expected, size_of=size_of)
    report = _read_report(body[: _REPORT.size])
    values, buffers = read_body(header, body[_REPORT.size :])
    return Update(header=header, values=values, buffers=buffers, report=report)


def _write_report(report: Report | None) -> bytes:
    if report is None:
        return bytes(_REPORT.size)
    _check_report(report)
    return _REPORT.pack(report.metric_sum, report.samples)


def _read_report(body: memoryview) -> Report | None:
    if not any(body):
        return None
    metric_sum, samples = _REPORT.unpack(body)
    report = Report(metric_sum=metric_sum, samples=samples)
    _check_report(report)
    return report


def _check_report(report: Report) -> None:
    if not math.isfinite(report.metric_sum):
        raise Refused(Reason.NON_FINITE, f"the report's metric sum is {report.metric_sum}")
    if not 1 <= report.samples < 2**64:
        raise Refused(Reason.REPORT, f"a report on {report.samples} samples; leave it out where there are none")
