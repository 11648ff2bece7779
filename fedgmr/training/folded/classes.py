"""The classes that clients do not have, brought together from where the table of a stack says."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def fetch(table, absent, classes, COLUMNS: tl.constexpr, ABSENT: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of a client's row."""
    client = tl.program_id(1).to(tl.int64)
    label = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    known = label < classes
    own = tl.load(table + client * COLUMNS + ABSENT).to(tl.pointer_type(tl.uint8))
    tl.store(absent + client * classes + label, tl.load(own + label, mask=known, other=0) != 0, mask=known)
