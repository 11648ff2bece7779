"""Batch norm, the sum and the ReLU behind it as one layer's work, found in a model by torch.fx.

Such a layer is called with what is added as second argument and makes the ReLU itself: an activation is then read
and written once. Models that cannot be traced stay as they are. Read next: `layers.py`.
"""

import operator

import torch
from torch import fx, nn

from fedgmr.training.tracing import is_relu, module_of, only_user

_SUMS = (operator.add, operator.iadd, torch.add)


def join(model: nn.Module) -> tuple[nn.Module, set[str]]:
    """The model with its sums and ReLUs joined to the batch norms before them, and the names of these."""
    try:
        traced = fx.symbolic_trace(model)
    except Exception:  # a model that cannot be traced computes as it is
        return model, set()
    joined = {str(node.target) for node in list(traced.graph.nodes) if _join(traced, node)}
    if not joined:
        return model, joined
    traced.recompile()
    return traced, joined


def _join(traced: fx.GraphModule, norm: fx.Node) -> bool:
    if not isinstance(module_of(traced, norm), nn.BatchNorm2d) or len(norm.args) != 1:
        return False
    behind, others = only_user(norm), []
    total = behind
    if behind is not None and behind.op == "call_function" and behind.target in _SUMS and not behind.kwargs:
        others = [arg for arg in behind.args if arg is not norm]
        if len(others) != 1 or not isinstance(others[0], fx.Node):
            return False
        behind = only_user(behind)
    if behind is None or not is_relu(traced, behind):
        return False
    with traced.graph.inserting_before(behind):
        new = traced.graph.call_module(str(norm.target), (*norm.args, *others))
    behind.replace_all_uses_with(new)
    for old in dict.fromkeys(node for node in (behind, total, norm) if node is not None):
        traced.graph.erase_node(old)
    return True
