"""Kernels compiled side by side before the first of them is launched.

Triton compiles a kernel at its first launch, one after the other; a ResNet-18 has 79. Here the work is done once with
nothing launched, and what it would have launched is compiled on all cores of the host. Read next: `executor.py`,
`fedgmr/training/folded/net.py`, which begin so.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton import JITFunction

_withheld = ContextVar("_withheld", default=False)
_launch = JITFunction.__getitem__


def compile_ahead(work: Callable[[], object]) -> None:
    """Compile the kernels that `work` launches, and launch none: what they would have written is anything.

    What cannot be done or compiled says so when the work is done for good.
    """
    if not isinstance(triton.jit(_nothing), JITFunction) or not hasattr(triton, "AsyncCompileMode"):
        return  # in the interpreter, or with an older Triton
    token = _withheld.set(True)
    try:
        with (
            suppress(Exception),
            ThreadPoolExecutor() as pool,
            triton.AsyncCompileMode(pool, ignore_errors=True),
            torch.autograd.set_multithreading_enabled(False),  # backward passes are seen here, too
            patch.object(JITFunction, "__getitem__", _withhold),
        ):
            work()
    finally:
        _withheld.reset(token)


def _withhold(kernel: Any, grid: object) -> Callable[..., object]:
    """What stands for a launch; in other threads, which are at other work, the launch itself."""
    if _withheld.get():
        return partial(kernel.warmup, grid=grid)
    return _launch(kernel, grid)  # type: ignore[no-any-return]


def _nothing() -> None:
    pass
