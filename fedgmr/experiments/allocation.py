"""Memory of a run: freed memory is soon taken again, so on Linux the process keeps it while the run lasts.

The C library gives large blocks back to the system at once and takes them anew, page by page, each filled with zeros:
for vectors the size of a model that costs several times what is done with them. Nothing happens where the C library
is not glibc.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# mallopt(3)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_MOST = 2**31 - 1
_ARENAS_PER_CORE = 8  # as glibc has it
_USUAL = {_MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 64 * 2**20}  # where glibc's own adjustment ends


@contextmanager
def reused_memory() -> Iterator[None]:
    """Keep freed memory in the process while this lasts, then give it back."""
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(_TRIM_THRESHOLD, _MOST)
    library.mallopt(_ARENA_MAX, 1)  # the pools of other threads are given back block by block all the same
    if not library.mallopt(_MMAP_THRESHOLD, 2**30):  # older versions take at most 32 MB
        library.mallopt(_MMAP_MAX, 0)
    try:
        yield
    finally:
        library.mallopt(_ARENA_MAX, _ARENAS_PER_CORE * (os.cpu_count() or 1))
        library.mallopt(_MMAP_MAX, 65536)
        for parameter, value in _USUAL.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "gnu_get_libc_version") else None
    except (OSError, TypeError):  # no such thing on this system
        return None
