"""Bytes from strangers: each refusal by name, and thousands of mutated objects.

FEDGMR_FUZZ sets how many mutated objects are tried.
"""

from __future__ import annotations

import dataclasses
import os
import random
import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from fedgmr.wire import (
    ABOVE,
    EVERYONE,
    Expected,
    Header,
    Limits,
    Reason,
    Refused,
    Report,
    Stamp,
    ValueType,
    decode_map,
    decode_update,
    decode_values,
    encode_map,
    encode_update,
    encode_values,
)

TOTAL = 200
STAMP = Stamp(run=7, client=5, version=3, map_version=2)
VALUES = np.linspace(-3, 3, 24, dtype=np.float32)
BUFFERS = np.array([0.5, 2.0], np.float32)
LEVELS = np.random.default_rng(0).choice(4, TOTAL, p=[0.05, 0.1, 0.35, 0.5]).astype(np.uint8)
KNOWN = np.where(LEVELS < 1, LEVELS, np.uint8(ABOVE))
REPORT = Report(metric_sum=4.0, samples=9)

ANY = Expected(run=7, client=5)
TASK = Expected(run=7, client=5, version=3, map_version=2, last=3, value_type=ValueType.FP16, count=24, buffers=2)
LIMITS = Limits(values=64, buffers=8)


def update(**changes: object) -> bytes:
    fields = {"stamp": STAMP, "last": 3, "value_type": ValueType.FP16, "buffers": BUFFERS, "report": REPORT}
    return encode_update(VALUES, **(fields | changes))  # type: ignore[arg-type]


def stamped(**changes: int) -> bytes:
    return update(stamp=dataclasses.replace(STAMP, **changes))


def repaired(data: bytes) -> bytes:
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


def poked(offset: int, new: bytes) -> bytes:
    data = update()
    return repaired(data[:offset] + new + data[offset + len(new) :])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.LENGTH),
        (update()[:51], Reason.LENGTH),
        (update()[:54], Reason.LENGTH),
        (update()[:-1], Reason.LENGTH),
        (update() + b"\0", Reason.LENGTH),
        (poked(0, b"FGMS"), Reason.MAGIC),
        (poked(4, b"\2"), Reason.FORMAT),
        (poked(6, b"\0"), Reason.KIND),
        (poked(6, b"\2"), Reason.KIND),  # VALUES where UPDATE is due
        (poked(7, b"\0"), Reason.VALUE_TYPE),
        (poked(7, b"\4"), Reason.VALUE_TYPE),
        (poked(7, b"\3"), Reason.VALUE_TYPE),  # bf16 where fp16 is due
        (poked(8, b"\1"), Reason.LEVEL),  # an update from level 1
        (poked(10, b"\1"), Reason.RESERVED),
        (poked(12, b"\xff\xff\xff\xff"), Reason.CLIENT),  # from everyone
        (poked(40, b"\xff" * 8), Reason.LIMIT),
        (poked(48, b"\xff" * 4), Reason.LIMIT),
        (poked(40, b"\x17"), Reason.LENGTH),  # one value less than there are
        (update()[:-1] + b"\0", Reason.CHECKSUM),
        (update()[:60] + b"\7" + update()[61:], Reason.CHECKSUM),
        (stamped(run=8), Reason.RUN),
        (stamped(client=6), Reason.CLIENT),
        (stamped(version=2), Reason.STALE),
        (stamped(version=4), Reason.VERSION),
        (stamped(map_version=1), Reason.MAP_VERSION),
        (update(last=4), Reason.LEVEL),
        (encode_update(VALUES[:-1], stamp=STAMP, last=3, value_type=ValueType.FP16), Reason.COUNT),
        (update(buffers=None), Reason.BUFFERS),
        (poked(52, b"\0\0\0\0\0\0\xf0\x7f"), Reason.NON_FINITE),  # an infinite metric
        (poked(60, b"\0"), Reason.REPORT),  # a metric over no samples
        (poked(68, b"\0\0\x80\x7f"), Reason.NON_FINITE),  # an infinite buffer entry
        (poked(76, b"\0\x7c"), Reason.NON_FINITE),  # an infinite value
        (poked(122, b"\1\xfc"), Reason.NON_FINITE),  # the last value a signalling NaN
    ],
)
def test_each_refusal(data: bytes, reason: Reason) -> None:
    with pytest.raises(Refused) as refusal:
        decode_update(data, expected=TASK)
    assert refusal.value.reason is reason
    assert refusal.value.reason == reason.value


def test_shared_objects_are_for_every_client() -> None:
    shared = dataclasses.replace(STAMP, client=EVERYONE)
    other = dataclasses.replace(STAMP, client=6)
    decode_values(encode_values(VALUES, stamp=shared, first=0, last=0), expected=ANY, limits=LIMITS)
    with pytest.raises(Refused, match="client"):
        decode_values(encode_values(VALUES, stamp=other, first=0, last=0), expected=ANY, limits=LIMITS)


def read_values(data: bytes) -> bytes:
    """Decode, check what must hold of anything decoded, and encode again."""
    got = decode_values(data, expected=ANY, limits=LIMITS)
    header = got.header
    assert got.values.shape == (header.count,)
    assert got.buffers.shape == (header.buffers,)
    assert np.isfinite(got.values).all()
    assert np.isfinite(got.buffers).all()
    assert header.value_type is not None
    return encode_values(
        got.values,
        stamp=header.stamp,
        first=header.first,
        last=header.last,
        value_type=header.value_type,
        buffers=got.buffers,
    )


def read_update(data: bytes) -> bytes:
    got = decode_update(data, expected=TASK)
    assert got.values.shape == (24,)
    assert got.buffers.shape == (2,)
    assert np.isfinite(got.values).all()
    assert np.isfinite(got.buffers).all()
    return encode_update(
        got.values, stamp=STAMP, last=3, value_type=ValueType.FP16, buffers=got.buffers, report=got.report
    )


def read_map(data: bytes) -> bytes:
    levels = decode_map(data, total=TOTAL, expected=ANY, known=KNOWN)
    header = Header.read(data)
    assert levels.shape == (TOTAL,)
    assert levels.dtype == np.uint8
    assert ((levels <= header.last) | (levels == ABOVE)).all()
    return encode_map(levels, stamp=header.stamp, first=header.first, last=header.last)


OBJECTS: list[tuple[bytes, Callable[[bytes], bytes]]] = [
    (update(), read_update),
    (encode_values(VALUES, stamp=STAMP, first=0, last=1, buffers=BUFFERS), read_values),
    (encode_values(VALUES, stamp=STAMP, first=0, last=1, value_type=ValueType.FP16), read_values),
    (encode_values(VALUES, stamp=STAMP, first=2, last=3, value_type=ValueType.BF16), read_values),
    (encode_map(LEVELS, stamp=STAMP, last=2), read_map),
    (encode_map(LEVELS, stamp=STAMP, first=1, last=3), read_map),
]


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Damage an object in one to three places, as noise would or as someone who knows the layout would."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(max(len(changed), 1))
        match draw.randrange(8):
            case 0 | 1:
                changed[place : place + 1] = bytes([draw.randrange(256)])
            case 2 | 3 if place < len(changed):
                changed[place] ^= 1 << draw.randrange(8)
            case 4:
                del changed[place : place + draw.randint(1, 16)]
            case 5:
                changed[place:place] = draw.randbytes(draw.randint(1, 16))
            case 6:
                extreme = draw.choice([b"\0", b"\xff"]) * draw.choice([1, 2, 4, 8])
                changed[place : place + len(extreme)] = extreme
            case 7:  # a header field, small or huge
                field, width = draw.choice([(4, 2), (6, 1), (7, 1), (8, 1), (9, 1), (40, 8), (48, 4), (52, 8)])
                value = draw.choice([0, 1, 2, 3, 255, draw.randrange(300), draw.getrandbits(64)])
                changed[field : field + width] = value.to_bytes(8, "little")[:width]
    return bytes(changed)


@pytest.mark.filterwarnings("error")
def test_mutated_objects() -> None:
    draw = random.Random(20)
    accepted = 0
    for trial in range(int(os.environ.get("FEDGMR_FUZZ", "100000"))):
        original, read = draw.choice(OBJECTS)
        data = mutated(original, draw)
        if trial % 2:
            data = repaired(data)
        try:
            again = read(data)
        except Refused as refusal:
            assert refusal.reason in Reason  # noqa: PT017 - a refusal is one of two good outcomes
        else:
            assert again == data, "whatever decodes is the one encoding of what it decodes to"
            accepted += 1
    assert accepted, "no mutated object got past the checksum, so nothing behind it was tested"


def test_garbage() -> None:
    draw = random.Random(21)
    for original, read in OBJECTS:
        for _ in range(100):
            with pytest.raises(Refused):
                read(draw.randbytes(draw.randrange(200)))
            with pytest.raises(Refused):
                read(repaired(original[:52] + draw.randbytes(draw.randrange(100))))


def peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("limit", [64, 2**50])  # where the limit is no help, the length of the object is
def test_a_huge_announcement_allocates_nothing(limit: int) -> None:
    data = encode_values(VALUES, stamp=STAMP, first=0, last=0)
    huge = repaired(data[:40] + (2**40).to_bytes(8, "little") + data[48:])

    def read() -> None:
        with pytest.raises(Refused):
            decode_values(huge, expected=ANY, limits=Limits(values=limit, buffers=0))

    assert peak_of(read) < 50_000


def test_many_parts_stay_within_a_multiple_of_the_coordinates() -> None:
    total = 100_000
    levels = np.full(total, ABOVE, np.uint8)
    levels[:255] = np.arange(255)
    data = encode_map(levels, stamp=STAMP, last=254)
    assert peak_of(lambda: decode_map(data, total=total, expected=ANY)) < 8 * total
