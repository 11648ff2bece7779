"""Level maps as bytes: exact sizes, ranges of parts, and how close the coding comes to the entropy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgmr.wire import (
    ABOVE,
    Expected,
    Reason,
    Refused,
    Stamp,
    ValueType,
    decode_map,
    encode_map,
    map_bytes,
    values_bytes,
)

STAMP = Stamp(run=7, version=3, map_version=2)
EXPECTED = Expected(run=7, client=1)


@st.composite
def level_maps(draw: st.DrawFn) -> np.ndarray:
    ladder = draw(st.lists(st.floats(0, 1), min_size=1, max_size=6))
    total = draw(st.integers(0, 2000))
    weights = np.array(ladder) ** 3 + 1e-9
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return generator.choice(len(ladder), total, p=weights / weights.sum()).astype(np.uint8)


def counts_of(levels: np.ndarray) -> list[int]:
    return np.bincount(levels, minlength=ABOVE).tolist()


def test_map_by_hand() -> None:
    # Level 0 keeps 5 and 20 of 32; level 1 keeps all others, which costs its count only.
    levels = np.ones(32, np.uint8)
    levels[[5, 20]] = 0
    data = encode_map(levels, stamp=STAMP, last=1)
    assert data[52:-4].hex() == "0200000000000000" + "1e00000000000000" + "3109"
    assert len(data) == map_bytes([2, 30], 32, 0, 1) == 52 + 16 + 2 + 4


@given(level_maps(), st.data())
def test_round_trip_and_exact_size(levels: np.ndarray, data: st.DataObject) -> None:
    last = data.draw(st.integers(0, 6), label="last")
    first = data.draw(st.integers(0, last), label="first")
    encoded = encode_map(levels, stamp=STAMP, first=first, last=last)
    assert len(encoded) == map_bytes(counts_of(levels), levels.size, first, last)
    known = np.where(levels < first, levels, np.uint8(ABOVE))
    decoded = decode_map(encoded, total=levels.size, expected=EXPECTED, known=known if first else None)
    assert decoded.dtype == np.uint8
    assert (decoded == np.where(levels <= last, levels, ABOVE)).all()


@given(level_maps(), st.integers(0, 5), st.integers(0, 5))
def test_increments_add_up_to_the_map(levels: np.ndarray, a: int, b: int) -> None:
    middle, last = sorted((a, b + 1))
    known = decode_map(encode_map(levels, stamp=STAMP, last=middle), total=levels.size, expected=EXPECTED)
    if middle < last:
        part = encode_map(levels, stamp=STAMP, first=middle + 1, last=last)
        before = known.copy()
        grown = decode_map(part, total=levels.size, expected=EXPECTED, known=known)
        assert (known == before).all()
        known = grown
    whole = decode_map(encode_map(levels, stamp=STAMP, last=last), total=levels.size, expected=EXPECTED)
    assert (known == whole).all()


def test_what_expected_says_of_values_is_ignored() -> None:
    levels = np.zeros(3, np.uint8)
    expected = Expected(run=7, client=1, value_type=ValueType.FP16, count=99, buffers=5)
    assert not decode_map(encode_map(levels, stamp=STAMP, last=0), total=3, expected=expected).any()


def test_parts_without_the_parts_before_are_refused() -> None:
    data = encode_map(np.arange(4, dtype=np.uint8), stamp=STAMP, first=1, last=2)
    with pytest.raises(Refused) as refusal:
        decode_map(data, total=4, expected=EXPECTED)
    assert refusal.value.reason is Reason.LEVEL


def test_wrong_model_and_too_many_coordinates_are_refused() -> None:
    data = encode_map(np.arange(4, dtype=np.uint8), stamp=STAMP, first=1, last=3)
    with pytest.raises(Refused) as refusal:
        decode_map(data, total=5, expected=EXPECTED, known=np.zeros(5, np.uint8))
    assert refusal.value.reason is Reason.COUNT
    with pytest.raises(Refused) as refusal:
        decode_map(data, total=4, expected=EXPECTED, known=np.array([0, 0, 255, 255], np.uint8))
    assert refusal.value.reason is Reason.COUNT


@pytest.mark.parametrize(
    ("counts", "total", "first", "last"),
    [([1, 2], 3, 0, 2), ([1, 2], 2, 0, 1), ([1], 1, 1, 0), ([-1], 1, 0, 0)],
)
def test_sizes_of_impossible_maps(counts: list[int], total: int, first: int, last: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        map_bytes(counts, total, first, last)


def test_wrong_arrays() -> None:
    with pytest.raises(ValueError, match="uint8"):
        encode_map(np.zeros(3, np.int64), stamp=STAMP, last=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape"):
        decode_map(b"", total=3, expected=EXPECTED, known=np.zeros(4, np.uint8))
    with pytest.raises(Refused) as refusal:
        encode_map(np.zeros(3, np.uint8), stamp=STAMP, last=255)
    assert refusal.value.reason is Reason.LEVEL


@pytest.mark.parametrize("value_type", list(ValueType))
@pytest.mark.parametrize("level", range(5))
def test_conv2_within_five_percent_of_the_entropy(level: int, value_type: ValueType) -> None:
    prunable, always = 6_601_504, 2_206
    kept = [round(density * prunable) for density in (0.05, 0.1, 0.2, 0.5, 1.0)]
    counts = [kept[0] + always, *(b - a for a, b in itertools.pairwise(kept))]
    total = prunable + always
    bits, remaining = 0.0, total
    for count in counts[: level + 1]:
        ways = math.lgamma(remaining + 1) - math.lgamma(count + 1) - math.lgamma(remaining - count + 1)
        bits += ways / math.log(2)
        remaining -= count
    values = sum(counts[: level + 1])
    size = map_bytes(counts, total, 0, level) + values_bytes(values, 0, value_type)
    assert size <= 1.05 * (value_type.width * values + bits / 8)
