"""Values as numbers of 32 or 16 bits.

Weights are float32 on both ends; the value type only decides how they travel. Both half types round to the
nearest, ties to even. Torch tensors come in by `tensor.numpy()` and go out by `torch.from_numpy`, neither of
which copies.
"""

import enum
import math

import numpy as np
import numpy.typing as npt

from fedgmr.wire.refusals import Reason, Refused

FloatArray = npt.NDArray[np.float32]


class ValueType(enum.StrEnum):
    """The way a value travels: `fp32` exactly, `fp16` with 11 significant bits, `bf16` with 8 in fp32's range."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def width(self) -> int:
        """Bytes per value."""
        return 4 if self is ValueType.FP32 else 2

    def write(self, values: FloatArray) -> memoryview:
        """Lay out one-dimensional float32 values; fp32 is a view of the input, not a copy.

        Raises:
            Refused: A value is not finite, or would not be after rounding.
        """
        if values.dtype != np.float32 or values.ndim != 1:
            raise ValueError(f"values must be one-dimensional float32, got {values.ndim}-dimensional {values.dtype}")
        _check_finite(values, self)
        laid: npt.NDArray[np.generic] = np.ascontiguousarray(values, "<f4")
        if self is ValueType.FP16:
            laid = laid.astype("<f2")
        elif self is ValueType.BF16:
            laid = _round_to_bf16(laid.view("<u4"))
        # An empty array cannot be cast by memoryview, hence the view as bytes on the numpy side.
        return laid.view(np.uint8).data

    def read(self, body: memoryview) -> FloatArray:
        """Read values back into a fresh, writable float32 array; the caller has checked the length of `body`.

        Raises:
            Refused: A value is not finite.
        """
        if self is ValueType.FP32:
            values = np.frombuffer(body, "<f4").astype(np.float32)
        elif self is ValueType.FP16:
            # A signalling NaN would warn here; it is refused below.
            with np.errstate(invalid="ignore"):
                values = np.frombuffer(body, "<f2").astype(np.float32)
        else:
            values = np.left_shift(np.frombuffer(body, "<u2"), 16, dtype=np.uint32).view(np.float32)
        _check_finite(values, ValueType.FP32)
        return values


# The smallest magnitude that rounds to infinity: halfway from the largest number to the next power of two.
_CEILING = {ValueType.FP32: math.inf, ValueType.FP16: 2.0**16 - 2.0**4, ValueType.BF16: 2.0**128 - 2.0**119}


def _check_finite(values: FloatArray, value_type: ValueType) -> None:
    # Two reductions need no temporary; a NaN survives both and fails the comparison.
    if not values.size:
        return
    ceiling = _CEILING[value_type]
    with np.errstate(invalid="ignore"):
        low, high = float(values.min()), float(values.max())
    if not (-ceiling < low and high < ceiling):
        raise Refused(
            Reason.NON_FINITE,
            f"values range from {low} to {high}, which {value_type} cannot carry; "
            f"fp16 ends at 65504, bf16 and fp32 near 3.4e38, NaN never travels",
        )


def _round_to_bf16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    # bf16 is the upper half of an fp32. Adding 0x7fff, plus one if the kept part is odd, carries into the
    # upper half exactly when rounding to the nearest (ties to even) goes away from zero.
    rounded = (bits >> 16) & 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    return rounded.astype("<u2")
