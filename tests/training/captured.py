"""CUDA graphs and streams without a device: work is noted down, done again as a graph does it, and watched.

A graph knows the operations of the one time when it was captured, with the tensors and the numbers that they were given
then. So does `Graph`, which also refuses what would wait for a device. `Stream` is one whose work may begin as late as
its end is waited for: memory that it reads must still be there then.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from fedgmr.training.execution import TRITON

# Operations whose result, or its size, the host has to know; `lift_fresh`: numbers of the host's as a tensor.
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "lift_fresh"}


def _tensors(*values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


class _Watching(TorchDispatchMode):
    """Sees every operation and every launch of a kernel within its block."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.before(args, kwargs)
        results = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage()._cdata for tensor in _tensors(args, kwargs)}
        own = [tensor.untyped_storage()._cdata not in known for tensor in _tensors(results)]
        made = [tensor if mine else None for tensor, mine in zip(_tensors(results), own, strict=True)]
        self.note(func, args, kwargs or {}, made)
        return results

    def before(self, *given: Any) -> None:
        """Look at what an operation is given."""

    def note(self, func: Any, args: Any, kwargs: Any, made: Sequence[Tensor | None]) -> None:
        """Take down an operation that has been done; `made` are its results, None for what is a view."""
        raise NotImplementedError


class Graph(_Watching):
    """In place of torch.cuda.CUDAGraph, and of the block in which it is captured."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self._done: list[tuple[Callable[[], Any], Sequence[Tensor | None]]] = []
        self._own: set[int] = set()  # storages that the operations have made
        self._given: dict[int, tuple[UntypedStorage, UntypedStorage]] = {}  # others, with what they held
        self.stream: Any = None  # that it is captured on

    def note(self, func: Any, args: Any, kwargs: Any, made: Sequence[Tensor | None]) -> None:
        name = getattr(getattr(func, "overloadpacket", None), "__name__", "")
        by_mask = name == "index" and any(one is not None and one.dtype == torch.bool for one in args[1])
        if name in _WAITING or by_mask:
            raise RuntimeError(f"{name} would wait for the device.")
        self._done.append((partial(func, *args, **kwargs), made))
        self._own |= {tensor.untyped_storage()._cdata for tensor in made if tensor is not None}

    def before(self, *given: Any) -> None:
        for storage in (tensor.untyped_storage() for tensor in _tensors(given)):
            if storage._cdata not in self._own and storage._cdata not in self._given:
                self._given[storage._cdata] = storage, storage.clone()

    def __exit__(self, *raised: Any) -> None:
        """The end of the capture, which has computed nothing."""
        super().__exit__(*raised)
        for storage, held in self._given.values():
            storage.copy_(held)

    @torch.no_grad()
    def replay(self) -> None:
        """Do everything again, in the same places."""
        for again, made in self._done:
            for place, result in zip(made, _tensors(again()), strict=True):
                if place is not None:
                    place.copy_(result)


class Stream(_Watching):
    """In place of torch.cuda.Stream; its work is done at once, and taken to be done when its end is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._reads: list[StorageWeakRef] = []
        self._own: list[StorageWeakRef] = []
        self.joined = 0

    def note(self, func: Any, args: Any, kwargs: Any, made: Sequence[Tensor | None]) -> None:
        own = {reference.cdata for reference in self._own}
        self._own += [StorageWeakRef(tensor.untyped_storage()) for tensor in made if tensor is not None]
        storages = [tensor.untyped_storage() for tensor in _tensors(args, kwargs)]
        self._reads += [StorageWeakRef(storage) for storage in storages if storage._cdata not in own]

    def wait_stream(self, other: Any) -> None:
        """What this stream does next comes after what the other has done."""

    def synchronize(self) -> None:
        """Nothing is left to do."""


class _Main:
    """In place of the stream that everything else is done on."""

    def wait_stream(self, other: Stream) -> None:
        """Here at the latest the other stream does its work."""
        assert not any(reference.expired() for reference in other._reads), "the stream reads what is given up already"
        other._reads.clear()
        other.joined += 1


def _captured(graph: Graph, *, stream: Any = None, **_: Any) -> Graph:
    graph.stream = stream
    return graph


@contextmanager
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the block graphs and streams are these."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "CUDAGraph", Graph)
        patch.setattr(torch.cuda, "graph", _captured)
        patch.setattr(torch.cuda, "stream", lambda stream: stream)
        patch.setattr(torch.cuda, "current_stream", lambda _: _Main())
        patch.setattr(torch.cuda, "synchronize", lambda _: None)
        patch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
        patch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
        if TRITON:
            from triton.runtime.interpreter import GridExecutor

            launch = GridExecutor.__call__

            def noted(self: Any, *args: Any, **kwargs: Any) -> None:
                modes = _get_current_dispatch_mode_stack()
                with _disable_current_modes():
                    for mode in modes:
                        mode.before(args, kwargs)
                    launch(self, *args, **kwargs)
                    for mode in modes:
                        mode.note(partial(launch, self), args, kwargs, [])

            patch.setattr(GridExecutor, "__call__", noted)
        yield
