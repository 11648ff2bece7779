"""Freed memory is taken again without the system's help while a run lasts, and given back after it; shortages."""

import resource
import statistics
import sys

import pytest
import torch

from fedgmr.experiments.allocation import _glibc, memory_shortage, reused_memory
from fedgmr.experiments.assembly import usable_device

SIZE = 12_000_000  # 48 MB: more than glibc ever keeps by itself


def _faults() -> int:
    """Pages the system had to find for one vector of this size."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(SIZE).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not sys.platform.startswith("linux") or _glibc() is None, reason="needs glibc")
def test_pages_are_used_again() -> None:
    pages = 4 * SIZE // resource.getpagesize()
    if _faults() < pages // 2:
        pytest.skip("the system gives out large pages")
    with reused_memory():
        _faults()
        # Now and then something small takes the beginning of the place, and one vector needs another.
        assert statistics.median(_faults() for _ in range(7)) < pages // 20
    assert _faults() > pages // 2


def test_a_device_without_room_is_a_shortage_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(f"CUDA error: {reason}\nCompile with TORCH_USE_CUDA_DSA.")

    monkeypatch.setattr(torch, "empty", refuse)
    reason = "out of memory"
    with pytest.raises(torch.OutOfMemoryError) as error:
        usable_device("cpu")
    assert memory_shortage(error.value) == "CUDA error: out of memory"
    reason = "no kernel image is available"
    with pytest.raises(ValueError, match=r"which cannot be used here \(CUDA error: no kernel image is available\)"):
        usable_device("cpu")
