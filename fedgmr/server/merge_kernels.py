"""The Triton kernel of a merge on a GPU: every coordinate of the new model is written once.

Read next: `fused_sums.py`, which calls it.
"""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def weighted(  # type: ignore[no-untyped-def]
    table, model, out, size, count,
    MEAN: tl.constexpr, VALUE: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Σ weight·value over the contributions that hold a coordinate; if MEAN by Σ weight, `model` where nobody does."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < size
    total = tl.zeros([SIZE], tl.float32)
    weight = tl.zeros([SIZE], tl.float32)
    level = tl.zeros([SIZE], tl.int32)
    place = at
    for number in range(0, count):
        row = table + number * COLUMNS
        values = tl.load(row).to(tl.pointer_type(VALUE))
        top = tl.load(row + 3).to(tl.int32)
        share = tl.load(row + 4).to(tl.int32).to(tl.float32, bitcast=True)
        if tl.load(row + 5) != 0:  # not of the level map of the row before
            level = tl.load(tl.load(row + 1).to(tl.pointer_type(tl.uint8)) + at, mask=inside, other=255).to(tl.int32)
            place = tl.load(tl.load(row + 2).to(tl.pointer_type(tl.int32)) + at, mask=inside, other=0)
        held = inside & (level <= top)
        total += share * tl.load(values + place, mask=held, other=0.0).to(tl.float32)
        weight += tl.where(held, share, 0.0)
    if MEAN:
        covered = weight > 0.0
        before = tl.load(model + at, mask=inside & (weight == 0.0), other=0.0)
        total = tl.where(covered, total / tl.where(covered, weight, 1.0), before)
    tl.store(out + at, total, mask=inside)
