"""One part of a map: which of the remaining coordinates have the next level.

A part is written as a bitmap or as an Elias-Fano sequence, whichever is shorter; the numbers of remaining and
kept coordinates alone decide, so the size is known without encoding and no byte is spent on saying which. The
rarer side is the one listed: where nearly all of the remaining coordinates are kept, the others are; where
all or none are, nothing is written.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from fedgmr.wire.refusals import Reason, Refused

Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartCode:
    """The way a part is written; its counts alone decide."""

    remaining: int  # coordinates that no earlier part keeps
    kept: int  # how many of them this part keeps
    listed: int  # coordinates on the rarer side
    low_bits: int | None  # bits per coordinate that Elias-Fano writes as they are; None for a bitmap
    size: int  # bytes of the part

    @classmethod
    def of(cls, remaining: int, kept: int) -> "PartCode":
        """The shortest code for a part with these counts."""
        listed = min(kept, remaining - kept)
        if listed == 0:
            return cls(remaining=remaining, kept=kept, listed=0, low_bits=None, size=0)
        sizes = {None: _bytes_for(remaining)} | {
            low_bits: _bytes_for(listed * low_bits) + _bytes_for(_high_bits(remaining, listed, low_bits))
            for low_bits in range(1, remaining.bit_length())
        }
        low_bits = min(sizes, key=sizes.__getitem__)  # the first of equals, so a bitmap if it is no longer
        return cls(remaining=remaining, kept=kept, listed=listed, low_bits=low_bits, size=sizes[low_bits])

    def encode(self, mask: Mask) -> bytes:
        """Write a part; the mask says for each remaining coordinate whether the part keeps it."""
        if self.listed == 0:
            return b""
        listed = mask if self.kept == self.listed else ~mask
        if self.low_bits is None:
            return np.packbits(listed, bitorder="little").tobytes()
        return _encode_positions(np.flatnonzero(listed), self.remaining, self.low_bits)

    def decode(self, data: memoryview) -> Mask:
        """Read a part of `size` bytes back into a mask over the remaining coordinates.

        Raises:
            Refused: The bytes are not what `encode` writes for these counts.
        """
        if self.listed == 0:
            return np.full(self.remaining, self.kept > 0)
        if self.low_bits is None:
            listed = _unpack(data, self.remaining)
            if np.count_nonzero(listed) != self.listed:
                raise Refused(Reason.MAP_CODE, f"the bitmap does not list {self.listed} coordinates")
        else:
            listed = np.zeros(self.remaining, np.bool_)
            listed[_decode_positions(data, self.remaining, self.listed, self.low_bits)] = True
        return listed if self.kept == self.listed else ~listed


def _encode_positions(positions: npt.NDArray[np.intp], remaining: int, low_bits: int) -> bytes:
    """Write ascending positions; uses up the array: fresh memory costs more than the work done on it."""
    # The low bits as bit planes (all lowest bits, then all second lowest, ...), which packs without shifting.
    low = positions.astype(_narrowest(low_bits))
    planes = np.empty((low_bits, positions.size), np.bool_)
    for bit, plane in enumerate(planes):
        np.not_equal(low & (1 << bit), 0, out=plane)
    # The high bits in unary: the i-th position sets bit high + i, which grows even where high repeats.
    unary = np.zeros(_high_bits(remaining, positions.size, low_bits), np.bool_)
    positions >>= low_bits
    positions += np.arange(positions.size)
    unary[positions] = True
    return np.packbits(planes, bitorder="little").tobytes() + np.packbits(unary, bitorder="little").tobytes()


def _decode_positions(data: memoryview, remaining: int, listed: int, low_bits: int) -> npt.NDArray[np.intp]:
    split = _bytes_for(listed * low_bits)
    planes = _unpack(data[:split], listed * low_bits).reshape(low_bits, listed)
    low = np.zeros(listed, _narrowest(low_bits))
    for bit, plane in enumerate(planes):
        low |= plane.astype(low.dtype) << bit
    ones = np.flatnonzero(_unpack(data[split:], _high_bits(remaining, listed, low_bits)))
    if ones.size != listed:
        raise Refused(Reason.MAP_CODE, f"the part lists {ones.size} coordinates where {listed} are due")
    positions = ones - np.arange(listed)
    positions <<= low_bits
    positions |= low
    if positions[-1] >= remaining or not (positions[1:] > positions[:-1]).all():
        raise Refused(Reason.MAP_CODE, f"the part lists coordinates out of order or beyond {remaining}")
    return positions


def _narrowest(bits: int) -> np.dtype[np.signedinteger]:
    # Few low bits are the rule, and bytes go through the processor eight times as fast as 64-bit numbers.
    # Signed, because numpy has no common type for signed and unsigned numbers of 64 bits.
    return np.min_scalar_type(-(1 << bits))


def _unpack(data: memoryview, count: int) -> Mask:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").view(np.bool_)
    if bits[count:].any():
        raise Refused(Reason.MAP_CODE, "padding bits are not zero")
    return bits[:count]


def _high_bits(remaining: int, listed: int, low_bits: int) -> int:
    return listed + ((remaining - 1) >> low_bits)


def _bytes_for(bits: int) -> int:
    return (bits + 7) // 8
