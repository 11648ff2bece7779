"""Follows the channels of a model by one forward pass, and tries the result: models of half the width must compute.

Where they cannot, because the forward pass names a size that nothing here can change, the channels that the call meets
keep their full width. Read next: `operations.py`, how the pass is followed; `plan.py`, what becomes of it.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from fedgmr.seeding import borrowed_generator
from fedgmr.submodels.channels.calls import Call, Checking, Recording, one_call
from fedgmr.submodels.channels.classes import Dims
from fedgmr.submodels.channels.notes import Notes, Whole
from fedgmr.submodels.channels.operations import Following
from fedgmr.submodels.channels.plan import ChannelPlan, Findings, Seen
from fedgmr.submodels.channels.slicing import LAST_NORMS, NORMS, slice_module
from fedgmr.submodels.inputs import Inputs, each, outputs_of
from fedgmr.submodels.widths import kept_channels


def follow_channels(model: nn.Module, inputs: Inputs) -> ChannelPlan:
    """The channel groups of `model`, which takes the batch `inputs`; two samples do.

    Raises:
        ValueError: the model cannot compute the batch.
    """
    model = copy.deepcopy(model).cpu().eval()
    inputs = each(Tensor.cpu, inputs)
    try:
        findings = _perform(copy.deepcopy(model), inputs)
    except Exception as error:
        raise ValueError(
            f"The channels of {type(model).__name__} cannot be followed, because its forward fails for two samples in "
            f"evaluation ({error}): correct it, or choose a ranking of single coordinates (taylor, magnitude)."
        ) from error
    while True:
        plan = findings.plan()
        without_calls = replace(plan, calls=())
        if not plan.groups or _failed_call(model, without_calls, plan.calls, inputs) is None:
            return without_calls
        failed = _failed_call(model, plan, plan.calls, inputs)
        if failed is None:
            return plan
        findings = findings.without(failed)


def _failed_call(model: nn.Module, plan: ChannelPlan, calls: Sequence[Call], inputs: Inputs) -> int | None:
    """The number of the call at which a half as wide module fails; None if it computes what it should."""
    first = [torch.zeros(group.size, dtype=torch.bool) for group in plan.groups]
    for mask, group in zip(first, plan.groups, strict=True):
        mask[kept_channels(group, 0.5, 0)] = True
    # A slice at a fixed place may be right for the first channels, and wrong for a window that has rolled on.
    for halves in first, [mask.flip(0) for mask in first]:
        kept = torch.cat([*halves, torch.ones(1, dtype=torch.bool)])
        checking = Checking(calls, kept)
        small = slice_module(model, plan, kept)
        try:
            with torch.no_grad(), borrowed_generator(), checking:
                outputs_of(small, inputs)
        except Exception:
            return min(checking.at, len(calls) - 1)
    return None


def _perform(model: nn.Module, inputs: Inputs) -> Findings:
    """One forward pass of a model that nobody else uses."""
    parameters = dict(model.named_parameters())
    notes = Notes(stored := parameters | dict(model.named_buffers()))
    norms: dict[str, Dims] = {}
    calls: list[Seen] = []

    def note(name: str, took: list[Tensor], gave: list[Tensor]) -> None:
        calls.append((name, notes.layer, [notes.dims(t) for t in took], [notes.dims(t) for t in gave]))

    for path, module in model.named_modules():
        module.register_forward_pre_hook(partial(_enter, notes, norms, path))
        module.register_forward_hook(partial(_leave, notes))
        if isinstance(module, nn.MultiheadAttention):
            module.forward = partial(one_call, module.forward)  # type: ignore[method-assign]
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, Tensor):
            notes.set(leaf, tuple(np.zeros(size, dtype=np.int64) for size in leaf.shape))
    with _plain_operations(), Following(notes), Recording(note):
        outputs = [notes.dims(leaf) for leaf in tree_leaves(outputs_of(model, inputs)) if isinstance(leaf, Tensor)]
    for path, module in model.named_modules():  # the layers and directions of a recurrent module have one size
        if isinstance(module, nn.RNNBase):
            hidden = [notes.dims(p)[1] for name, p in module.named_parameters() if name.startswith("weight_hh")]
            for other in hidden[1:]:
                notes.classes.join(hidden[0], other)
            for name, parameter in module.named_parameters():
                if name.startswith("weight_hr"):
                    reason = "an LSTM must have more cells than projections of them"  # or PyTorch sees no projection
                    notes.whole.append(Whole(layer=path, reason=reason, entries=notes.dims(parameter)[1]))
    tensors = {name: notes.dims(tensor) for name, tensor in stored.items()}
    heads = _heads(notes, {name: tensors[name] for name in parameters}, outputs)
    for entries in (*notes.looked_up, *(entries for dims in outputs for entries in dims)):
        notes.classes.join(entries, 0)
    return Findings(
        classes=notes.classes,
        tensors=tensors,
        parameters=frozenset(parameters),
        norms=norms,
        divided=notes.divided,
        whole=notes.whole,
        heads=heads,
        calls=calls,
    )


def _heads(notes: Notes, parameters: dict[str, Dims], outputs: list[Dims]) -> dict[str, tuple[int, Tensor]]:
    """The parameters with a row for every output of the model."""
    heads = {}
    number = {int(c): i for dims in outputs for e in dims for i, c in enumerate(notes.classes.find(e)) if c}
    for name, dims in parameters.items():
        for dim, entries in enumerate(dims):
            rows = [number.get(int(found), -1) for found in notes.classes.find(entries)]
            if -1 not in rows:
                heads[name] = dim, torch.tensor(rows)
    return heads


def _enter(notes: Notes, norms: dict[str, Dims], path: str, module: nn.Module, args: Any) -> None:
    notes.layers.append(path)
    if isinstance(module, NORMS):
        dims = notes.dims(args[0])
        norms[path] = dims[-len(module.normalized_shape) :] if isinstance(module, LAST_NORMS) else dims[1:2]


def _leave(notes: Notes, *_: Any) -> None:
    notes.layers.pop()


@contextmanager
def _plain_operations() -> Iterator[None]:
    """Layers fall apart into plain operations, not into a device's fused ones, and nothing is kept for gradients."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            torch.inference_mode(),
            torch.backends.mkldnn.flags(enabled=False),
            sdpa_kernel(SDPBackend.MATH),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
