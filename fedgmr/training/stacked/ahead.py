"""Kernels compiled side by side before the first of them is launched.

Triton compiles a kernel at its first launch, one after the other; a ResNet-18 has 79. Here the work is done once with
nothing launched, and what it would have launched is compiled on all cores of the host. Read next: `executor.py`,
`fedgmr/training/folded/net.py`, which begin so.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton import JITFunction

_withheld = ContextVar("_withheld", default=False)
_launch = JITFunction.__getitem__
_one_at_a_time = Lock()
_UNWRITTEN = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided}


def compile_ahead(work: Callable[[], object]) -> None:
    """Compile the kernels that `work` launches, and launch none: what they would have written is anything.

    What cannot be done or compiled says so when the work is done for good.
    """
    if not isinstance(triton.jit(_nothing), JITFunction) or not hasattr(triton, "AsyncCompileMode"):
        return  # in the interpreter, or with an older Triton
    with _one_at_a_time, patch.object(JITFunction, "__getitem__", _withhold):
        copy_context().run(_go_through, work)  # whatever breaks off, this thread's own modes stay as they are


def withheld() -> bool:
    """Whether launches are withheld: numbers mean nothing then."""
    return _withheld.get()


def _go_through(work: Callable[[], object]) -> None:
    _withheld.set(True)
    with (
        suppress(Exception),
        ThreadPoolExecutor() as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
        torch.autograd.set_multithreading_enabled(False),  # backward passes are seen here, too
        _Filled(),
    ):
        work()


class _Filled(TorchFunctionMode):
    """What no kernel has written holds ones or, if it may be an index, zeros: a device cannot take back an error."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.fill_(1 if made.is_floating_point() else 0) if func in _UNWRITTEN else made


def _withhold(kernel: Any, grid: object) -> Callable[..., object]:
    """What stands for a launch; in other threads, which are at other work, the launch itself."""
    if _withheld.get():
        return partial(kernel.warmup, grid=grid)
    return _launch(kernel, grid)  # type: ignore[no-any-return]


def _nothing() -> None:
    pass
