"""Memory of a run: kept while it lasts, and how it is noticed that there is none left.

The C library gives large blocks back to the system at once and takes them anew, page by page, each filled with zeros:
for vectors the size of a model that costs several times what is done with them. So on Linux the process keeps freed
memory, which is soon taken again. Nothing happens where the C library is not glibc.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# mallopt(3)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_MOST = 2**31 - 1
_ARENAS_PER_CORE = 8  # as glibc has it
_CPU_SIGN = "DefaultCPUAllocator: can't allocate memory: "  # PyTorch has no type for it
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


def memory_shortage(error: BaseException) -> str | None:
    """What an error says of memory that the host or a device does not have; None where it is about something else."""
    words = (str(error).splitlines() or ["an allocation failed"])[0]
    if _CPU_SIGN in words:
        return words.partition(_CPU_SIGN)[2]
    return words if isinstance(error, MemoryError | torch.OutOfMemoryError) else None


def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "gnu_get_libc_version") else None
    except (OSError, TypeError):  # no such thing on this system
        return None
