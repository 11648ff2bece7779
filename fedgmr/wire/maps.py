"""The MAP object: the parts of a level map that a client does not have yet.

Part j says which of the coordinates that are in no earlier part have level j. A client at level l gets parts
0 to l; one that was restored under an unchanged map gets the new part only. The body is the count of each
part, 8 bytes each, then the parts.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedgmr.wire.envelope import Expected
from fedgmr.wire.header import ABOVE, ENVELOPE_BYTES, Header, Kind, Stamp
from fedgmr.wire.parts import Mask, PartCode
from fedgmr.wire.refusals import Reason, Refused

Levels = npt.NDArray[np.uint8]

_COUNT_BYTES = 8


def map_bytes(counts: Sequence[int], total: int, first: int, last: int) -> int:
    """Exact length of the MAP object for parts first to last of a model with `total` coordinates.

    `counts` are the coordinates per level, from level 0 up to at least `last`.
    """
    counts = [int(count) for count in counts]
    travelling, remaining = counts[first : last + 1], total - sum(counts[:first])
    if not 0 <= first <= last < len(counts) or min(counts) < 0 or sum(travelling) > remaining:
        raise ValueError(
            f"parts {first} to {last} of counts {counts} do not fit {total} coordinates; "
            f"give one count per level, from level 0 on"
        )
    return _object_bytes(travelling, remaining)


def encode_map(levels: Levels, *, stamp: Stamp, first: int = 0, last: int) -> bytes:
    """Write parts first to last of a level map, in which coordinates above `last` may have any higher level.

    Where `first` is above 0 the receiver must know the parts before.
    """
    if levels.dtype != np.uint8 or levels.ndim != 1:
        raise ValueError(f"a level map is one-dimensional uint8, got {levels.ndim}-dimensional {levels.dtype}")
    counts, parts = [], []
    remaining = levels if first == 0 else levels[levels >= first]
    masks = np.empty(remaining.size, np.bool_)
    for level in range(first, last + 1):
        mask = np.equal(remaining, level, out=masks[: remaining.size])
        counts.append(int(np.count_nonzero(mask)))
        parts.append(PartCode.of(mask.size, counts[-1]).encode(mask))
        if level < last and counts[-1]:
            remaining = remaining[np.logical_not(mask, out=mask)]
    header = Header(kind=Kind.MAP, value_type=None, first=first, last=last, stamp=stamp, count=levels.size)
    return header.seal([np.array(counts, "<u8").tobytes(), *parts])


def decode_map(
    data: bytes | bytearray | memoryview, *, total: int, expected: Expected, known: Levels | None = None
) -> Levels:
    """Read a level map, with `ABOVE` for the coordinates above its last part.

    Memory stays within a small multiple of `total`, the coordinates of the whole model, whatever the object says. What
    `expected` says of values is ignored. `known` are the parts that the receiver has, needed if the object does not
    begin with part 0; they are not modified. With them, `expected` should name `first`: an object cannot show that a
    part between the known ones and its own is absent.

    Raises:
        Refused: The bytes are not the map that is expected.
    """
    if known is not None and (known.dtype != np.uint8 or known.shape != (total,)):
        raise ValueError(f"known must be uint8 of shape ({total},), got {known.dtype} of shape {known.shape}")

    def remaining_at(first: int) -> int:
        return total if first == 0 or known is None else int(np.count_nonzero(known >= first))

    def size_of(header: Header, body: memoryview) -> int:
        if header.count != total:
            raise Refused(Reason.COUNT, f"a map of {header.count} coordinates for a model of {total}")
        if header.first > 0 and known is None:
            raise Refused(Reason.LEVEL, f"the map begins at part {header.first} and no part before is known")
        counts, remaining = _read_counts(header, body), remaining_at(header.first)
        if sum(counts) > remaining:
            raise Refused(Reason.COUNT, f"parts of {counts} coordinates exceed the {remaining} that remain")
        return _object_bytes(counts, remaining)

    expected = dataclasses.replace(expected, value_type=None, count=None, buffers=None)
    header, body = expected.open(data, kind=Kind.MAP, size_of=size_of)
    levels = _decode_parts(header, body, remaining_at(header.first))
    if known is None or header.first == 0:
        return levels
    merged = known.copy()
    merged[known >= header.first] = levels
    return merged


def _object_bytes(counts: Sequence[int], remaining: int) -> int:
    size = ENVELOPE_BYTES
    for kept in counts:
        size += _COUNT_BYTES + PartCode.of(remaining, kept).size
        remaining -= kept
    return size


def _read_counts(header: Header, body: memoryview) -> list[int]:
    size = _COUNT_BYTES * (header.last - header.first + 1)
    if len(body) < size:
        raise Refused(Reason.LENGTH, f"{len(body)} bytes of body where the counts alone take {size}")
    return [int(count) for count in np.frombuffer(body[:size], "<u8")]


def _decode_parts(header: Header, body: memoryview, remaining: int) -> Levels:
    """Rebuild the levels of the remaining coordinates, from the last part to the first.

    Backwards, each step only widens the array by the coordinates of one part, so no step needs the indices of
    coordinates, and no more than one mask is alive at a time.
    """
    counts = _read_counts(header, body)
    offset = _COUNT_BYTES * len(counts)
    parts = []
    for level, kept in enumerate(counts, start=header.first):
        code = PartCode.of(remaining, kept)
        parts.append((level, code, body[offset : offset + code.size]))
        offset += code.size
        remaining -= kept
    levels: Levels | None = None  # all ABOVE
    for level, code, data in reversed(parts):
        if code.kept:
            levels = _widen(levels, code.decode(data), level)
    return np.full(remaining, ABOVE, np.uint8) if levels is None else levels


def _widen(levels: Levels | None, mask: Mask, level: int) -> Levels:
    """Put the level of a part where its mask is set, and the levels found so far elsewhere; uses up the mask.

    In place where possible: fresh memory of the size of a model costs more than the work done on it.
    """
    if levels is None:
        widened = mask.view(np.uint8)
        widened -= 1  # 0 where the mask was set, 255 = ABOVE elsewhere
        widened |= np.uint8(level)
    else:
        widened = np.full(mask.size, level, np.uint8)
        widened[np.logical_not(mask, out=mask)] = levels
    return widened
