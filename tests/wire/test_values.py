"""Values and updates as bytes: by hand, at random, and against torch's own rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedgmr.wire import (
    EVERYONE,
    Expected,
    Header,
    Limits,
    Reason,
    Refused,
    Report,
    Stamp,
    ValueType,
    decode_update,
    decode_values,
    encode_update,
    encode_values,
    update_bytes,
    values_bytes,
)
from fedgmr.wire.header import Kind

STAMP = Stamp(run=7, version=3, map_version=2)
MINE = Stamp(run=7, client=5, version=3, map_version=2)
EXPECTED = Expected(run=7, client=5)
LIMITS = Limits(values=1000, buffers=100)

TORCH_TYPES = {
    ValueType.FP32: torch.float32,
    ValueType.FP16: torch.float16,
    ValueType.BF16: torch.bfloat16,
}
# Within the range of the narrowest type, down to subnormals, with both zeros.
numbers = st.floats(-65504, 65504, width=32)
vectors = hnp.arrays(np.float32, st.integers(0, 60), elements=numbers)
value_types = st.sampled_from(list(ValueType))
reports = st.none() | st.builds(
    Report, metric_sum=st.floats(allow_nan=False, allow_infinity=False), samples=st.integers(1, 2**64 - 1)
)


def rounded(values: np.ndarray, value_type: ValueType) -> np.ndarray:
    return torch.from_numpy(values).to(TORCH_TYPES[value_type]).float().numpy()


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype == np.float32 and a.tobytes() == b.tobytes()


def test_values_by_hand() -> None:
    data = encode_values(
        np.array([1.0, -2.0], np.float32),
        stamp=Stamp(run=0x0102030405060708, version=9, map_version=4),
        first=0,
        last=2,
        value_type=ValueType.FP16,
        buffers=np.array([0.5], np.float32),
    )
    assert data[:-4].hex(" ") == (
        "46 47 4d 52 01 00 02 02 00 02 00 00 ff ff ff ff "  # magic, format 1, VALUES, fp16, 0 to 2, EVERYONE
        "08 07 06 05 04 03 02 01 09 00 00 00 00 00 00 00 "  # run, version
        "04 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 "  # map version, two values
        "01 00 00 00 "  # one buffer entry
        "00 00 00 3f 00 3c 00 c0"
    )
    assert len(data) == values_bytes(2, 1, ValueType.FP16) == 52 + 4 + 2 * 2 + 4


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (1.0 + 2**-8, 0x3F80),  # a tie, to even: down
        (1.0 + 3 * 2**-8, 0x3F82),  # a tie, to even: up
        (1.0 + 2**-8 + 2**-20, 0x3F81),
        (-0.0, 0x8000),
    ],
)
def test_bf16_by_hand(value: float, bits: int) -> None:
    values = np.array([value], np.float32)
    data = encode_values(values, stamp=STAMP, first=0, last=0, value_type=ValueType.BF16)
    assert int.from_bytes(data[52:54], "little") == bits


@given(vectors, vectors, value_types, st.integers(0, 254))
def test_values_round_trip(values: np.ndarray, buffers: np.ndarray, value_type: ValueType, last: int) -> None:
    data = encode_values(values, stamp=STAMP, first=0, last=last, value_type=value_type, buffers=buffers)
    assert len(data) == values_bytes(values.size, buffers.size, value_type)
    decoded = decode_values(data, expected=EXPECTED, limits=LIMITS)
    assert same_bits(decoded.values, rounded(values, value_type))
    assert same_bits(decoded.buffers, buffers)
    assert decoded.values.flags.writeable
    assert decoded.header == Header.read(data)
    assert (decoded.header.stamp, decoded.header.kind) == (STAMP, Kind.VALUES)


@given(vectors, vectors, value_types, reports, st.integers(0, 254))
def test_update_round_trip(
    values: np.ndarray, buffers: np.ndarray, value_type: ValueType, report: Report | None, last: int
) -> None:
    data = encode_update(values, stamp=MINE, last=last, value_type=value_type, buffers=buffers, report=report)
    assert len(data) == update_bytes(values.size, buffers.size, value_type)
    expected = Expected(
        run=7,
        client=5,
        version=3,
        map_version=2,
        last=last,
        value_type=value_type,
        count=values.size,
        buffers=buffers.size,
    )
    decoded = decode_update(bytearray(data), expected=expected)
    assert same_bits(decoded.values, rounded(values, value_type))
    assert same_bits(decoded.buffers, buffers)
    assert decoded.report == report


@given(vectors, st.integers(0, 60))
def test_gaps_add_up_to_the_sub_model(values: np.ndarray, cut: int) -> None:
    cut = min(cut, values.size)
    low = encode_values(values[:cut], stamp=STAMP, first=0, last=1)
    high = encode_values(values[cut:], stamp=STAMP, first=2, last=4)
    parts = [decode_values(data, expected=EXPECTED, limits=LIMITS).values for data in (low, high)]
    assert same_bits(np.concatenate(parts), values)


def test_strided_and_read_only_input() -> None:
    values = np.arange(10, dtype=np.float32)[::3]
    values.flags.writeable = False
    data = encode_values(values, stamp=STAMP, first=0, last=0)
    assert decode_values(data, expected=EXPECTED, limits=LIMITS).values.tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("value", "value_type", "fits"),
    [
        (65519.0, ValueType.FP16, True),
        (65520.0, ValueType.FP16, False),
        (-65520.0, ValueType.FP16, False),
        (3.3961775e38, ValueType.BF16, False),  # halfway between the largest bf16 and 2**128
        (3.3961773e38, ValueType.BF16, True),
        (3.4028235e38, ValueType.FP32, True),
        (float("inf"), ValueType.FP32, False),
        (float("nan"), ValueType.FP32, False),
        (float("nan"), ValueType.FP16, False),
        (float("nan"), ValueType.BF16, False),
    ],
)
def test_what_would_not_be_finite_does_not_leave(value: float, value_type: ValueType, fits: bool) -> None:
    values = np.array([0.0, value, 1.0], np.float32)
    assert np.isfinite(rounded(values, value_type)).all() == fits
    if fits:
        data = encode_values(values, stamp=STAMP, first=0, last=0, value_type=value_type)
        assert np.isfinite(decode_values(data, expected=EXPECTED, limits=LIMITS).values).all()
    else:
        with pytest.raises(Refused) as refusal:
            encode_values(values, stamp=STAMP, first=0, last=0, value_type=value_type)
        assert refusal.value.reason is Reason.NON_FINITE


def test_senders_mistakes() -> None:
    one = np.ones(1, np.float32)
    with pytest.raises(Refused, match="buffers"):
        encode_values(one, stamp=STAMP, first=1, last=1, buffers=one)
    with pytest.raises(Refused, match="level"):
        encode_values(one, stamp=STAMP, first=2, last=1)
    with pytest.raises(Refused, match="client"):
        encode_update(one, stamp=Stamp(run=7, client=EVERYONE, version=0, map_version=0), last=0)
    with pytest.raises(Refused, match="report"):
        encode_update(one, stamp=MINE, last=0, report=Report(metric_sum=0.0, samples=0))
    with pytest.raises(Refused, match="non-finite"):
        encode_update(one, stamp=MINE, last=0, report=Report(metric_sum=float("nan"), samples=1))
    with pytest.raises(ValueError, match="float32"):
        encode_values(np.ones(1), stamp=STAMP, first=0, last=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="64 bits"):
        encode_values(one, stamp=Stamp(run=2**64, version=0, map_version=0), first=0, last=0)


def test_decoding_an_update_demands_the_whole_task() -> None:
    data = encode_update(np.ones(1, np.float32), stamp=MINE, last=0)
    with pytest.raises(ValueError, match=r"expected\.version"):
        decode_update(data, expected=EXPECTED)
