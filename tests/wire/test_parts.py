"""One part of a map, by hand and at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgmr.wire import parts
from fedgmr.wire.parts import PartCode
from fedgmr.wire.refusals import Reason, Refused


def mask_of(size: int, positions: list[int]) -> np.ndarray:
    mask = np.zeros(size, np.bool_)
    mask[positions] = True
    return mask


def read(data: bytes, remaining: int, kept: int) -> np.ndarray:
    return PartCode.of(remaining, kept).decode(memoryview(data))


def written(mask: np.ndarray) -> bytes:
    return PartCode.of(mask.size, int(mask.sum())).encode(mask)


def test_elias_fano_by_hand() -> None:
    # 2 of 32: three low bits. 5 = 00 101, 20 = 10 100 in (high, low) bits.
    # Planes of the low bits, lowest first: 10, 00, 11 -> bits 0, 4, 5 -> 0x31.
    # Unary high bits: 0 + 0 and 2 + 1 -> bits 0, 3 -> 0x09.
    code = PartCode.of(32, 2)
    assert (code.listed, code.low_bits, code.size) == (2, 3, 2)
    assert written(mask_of(32, [5, 20])) == bytes([0x31, 0x09])


def test_bitmap_by_hand() -> None:
    # 4 of 10: Elias-Fano would take 2 bytes as well, so a bitmap. Bits 0, 3, 5 -> 0x29; bit 8 -> 0x01.
    code = PartCode.of(10, 4)
    assert (code.low_bits, code.size) == (None, 2)
    assert written(mask_of(10, [0, 3, 5, 8])) == bytes([0x29, 0x01])


def test_rarer_side_is_listed() -> None:
    assert written(~mask_of(32, [5, 20])) == bytes([0x31, 0x09])
    assert (read(bytes([0x31, 0x09]), 32, 30) == ~mask_of(32, [5, 20])).all()


@pytest.mark.parametrize("low_bits", [6, 7, 8, 15, 16, 31, 32, 33, 40])
def test_positions_of_any_width(low_bits: int) -> None:
    remaining = 3 << low_bits
    positions = np.array([0, 1, (1 << low_bits) - 1, 1 << low_bits, remaining - 1])
    data = parts._encode_positions(positions.copy(), remaining, low_bits)
    assert (parts._decode_positions(memoryview(data), remaining, 5, low_bits) == positions).all()


@pytest.mark.parametrize(("remaining", "kept"), [(0, 0), (9, 0), (9, 9)])
def test_all_or_none_costs_nothing(remaining: int, kept: int) -> None:
    assert PartCode.of(remaining, kept).size == 0
    assert np.count_nonzero(read(b"", remaining, kept)) == kept


@given(st.integers(0, 3000), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_round_trip_and_size(remaining: int, density: float, seed: int) -> None:
    # Squaring makes the sparse parts that Elias-Fano is for as likely as the others.
    mask = np.random.default_rng(seed).random(remaining) < density**2
    kept = int(np.count_nonzero(mask))
    data = written(mask)
    assert len(data) == PartCode.of(remaining, kept).size <= (remaining + 7) // 8
    assert (read(data, remaining, kept) == mask).all()


@pytest.mark.parametrize(
    ("data", "remaining", "kept", "why"),
    [
        ([0x29, 0x05], 10, 4, "padding"),
        ([0x29, 0x00], 10, 4, "does not list"),
        ([0x71, 0x09], 32, 2, "padding"),  # bit 6 of the low bits
        ([0x31, 0x29], 32, 2, "padding"),  # bit 5 of the high bits
        ([0x31, 0x01], 32, 2, "lists 1"),
        ([0x31, 0x0B], 32, 2, "lists 3"),
        ([0x31, 0x03], 32, 2, "out of order"),  # 5 then 4: same high bits, falling low bits
        ([0x33, 0x03], 32, 2, "out of order"),  # 5 twice
        ([0x31, 0x18], 30, 2, "out of order"),  # 29 then 28
        ([0x3F, 0x11], 30, 2, "beyond"),  # 7 and 31 of 30
    ],
)
def test_malformed_parts_are_refused(data: list[int], remaining: int, kept: int, why: str) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        read(bytes(data), remaining, kept)
    assert refusal.value.reason is Reason.MAP_CODE
