"""The VALUES object: the weights of a range of levels, in level order.

Level order makes sub-model l a prefix and lets the server share one object per gap between neighbouring
levels in use. The model's buffers (batch-norm statistics) ride with level 0, always as float32. The body is
the buffers, then the values.
"""

from __future__ import annotations

import dataclasses

from fedgmr.wire.envelope import ENVELOPE_BYTES, Expected, Limits, check_limits, seal, unseal
from fedgmr.wire.header import Header, Kind, Stamp
from fedgmr.wire.precision import FloatArray, ValueType, read_numbers, write_numbers


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Values:
    """A decoded VALUES object.

    Attributes:
        header: What the object said of itself.
        values: Weights of levels first to last, in level order; writable.
        buffers: The model's buffers; empty unless level 0 is covered.
    """

    header: Header
    values: FloatArray
    buffers: FloatArray


def values_bytes(count: int, buffers: int, value_type: ValueType = ValueType.FP32) -> int:
    """Exact length of a VALUES object.

    Args:
        count: How many values.
        buffers: How many buffer entries.
        value_type: How the values travel.
    """
    return ENVELOPE_BYTES + ValueType.FP32.width * buffers + value_type.width * count


def encode_values(
    values: FloatArray,
    *,
    stamp: Stamp,
    first: int,
    last: int,
    value_type: ValueType = ValueType.FP32,
    buffers: FloatArray | None = None,
) -> bytes:
    """Write the weights of levels first to last.

    Args:
        values: The weights in level order, one-dimensional float32.
        stamp: Run, client, version and map version.
        first: The lowest level covered.
        last: The highest level covered.
        value_type: How the values travel.
        buffers: The model's buffers, where level 0 is covered.

    Raises:
        Refused: A value is not finite or does not fit the value type, or buffers travel without level 0.
    """
    header = Header(
        kind=Kind.VALUES,
        value_type=value_type,
        first=first,
        last=last,
        stamp=stamp,
        count=values.size,
        buffers=0 if buffers is None else buffers.size,
    )
    return seal(header, write_body(values, buffers, value_type))


def decode_values(data: bytes | bytearray | memoryview, *, expected: Expected, limits: Limits) -> Values:
    """Read the weights of a range of levels.

    Args:
        data: The object, from outside.
        expected: What the receiver is waiting for.
        limits: The most it is willing to hold.

    Raises:
        Refused: The bytes are not the values that are expected.
    """

    def size_of(header: Header, _: memoryview) -> int:
        check_limits(header, limits)
        assert header.value_type is not None  # the rules of the header
        return values_bytes(header.count, header.buffers, header.value_type)

    header, body = unseal(data, kind=Kind.VALUES, expected=expected, size_of=size_of)
    values, buffers = read_body(header, body)
    return Values(header=header, values=values, buffers=buffers)


def write_body(values: FloatArray, buffers: FloatArray | None, value_type: ValueType) -> list[memoryview]:
    """Lay out buffers and values; buffers come first, so that both stay aligned."""
    numbers = [write_numbers(values, value_type)]
    if buffers is not None:
        numbers.insert(0, write_numbers(buffers, ValueType.FP32))
    return numbers


def read_body(header: Header, body: memoryview) -> tuple[FloatArray, FloatArray]:
    """Read values and buffers from a body whose length has been checked."""
    assert header.value_type is not None  # the rules of the header
    split = ValueType.FP32.width * header.buffers
    buffers = read_numbers(body[:split], ValueType.FP32)
    values = read_numbers(body[split:], header.value_type)
    assert values.size == header.count
    return values, buffers
