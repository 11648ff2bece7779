"""Kernels compiled before they are launched; needs a CUDA device."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest
import torch

from fedgmr.training.execution import TRITON

if not TRITON or not torch.cuda.is_available():
    pytest.skip("needs Triton and a CUDA device", allow_module_level=True)

import triton
import triton.language as tl

from fedgmr.training.stacked.ahead import compile_ahead
from training.test_folded import folded, objects_of, residual
from training.test_stacked import DEVICE

if DEVICE == "cpu":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)


@triton.jit
def _fill(room, value, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(room + tl.arange(0, SIZE), value)


@contextmanager
def compiled() -> Iterator[list[bool]]:
    """For every kernel compiled within, whether that was ahead of its launch."""
    seen: list[bool] = []

    def note(*, is_manual_warmup: bool, **_: Any) -> None:
        seen.append(is_manual_warmup)

    with patch.object(triton.knobs.runtime, "jit_post_compile_hook", note):
        yield seen


def test_a_kernel_is_compiled_and_not_launched() -> None:
    room = torch.zeros(16, device="cuda")
    with compiled() as seen:
        compile_ahead(lambda: _fill[(1,)](room, 2.0, 16))
        assert seen == [True]
        assert not room.any()
        _fill[(1,)](room, 2.0, 16)
    assert seen == [True]
    assert room.eq(2).all()


def test_other_threads_launch() -> None:
    room = torch.zeros(32, device="cuda")

    def work() -> None:
        other = Thread(target=lambda: _fill[(1,)](room, 2.0, 32))
        other.start()
        other.join()

    compile_ahead(work)
    assert room.eq(2).all()


def test_a_kernel_that_cannot_be_compiled_says_so_at_its_launch() -> None:
    room = torch.zeros(16, device="cuda")
    compile_ahead(lambda: _fill[(1,)](room, 2.0, 17))
    compile_ahead(lambda: 1 / 0)
    with pytest.raises(Exception, match="power of 2"):
        _fill[(1,)](room, 2.0, 17)


def test_what_nothing_has_written_is_no_number_that_hurts() -> None:
    seen: list[float] = []

    def work() -> None:
        room = torch.full((8,), torch.nan, device="cuda", requires_grad=True)
        seen.extend([float(torch.empty_like(room).sum()), float(room.new_empty(8, dtype=torch.int64).sum())])
        (room * 2).sum().backward()

    compile_ahead(work)
    assert seen == [8.0, 0.0]


def test_a_run_launches_what_was_compiled_ahead() -> None:
    run = objects_of(residual(), batch_size=5)
    with compiled() as seen:
        folded(run).train(run.server.tasks(range(3), 0.0))
    assert seen
    assert all(seen)
