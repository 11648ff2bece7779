"""Patterns in models that torch.fx has traced: what executors look for when they compute several layers as one."""

import torch
from torch import fx, nn
from torch.nn import functional

_RELUS = (torch.relu, functional.relu, functional.relu_)


def module_of(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """The module that a node calls, if it calls one."""
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


def only_user(node: fx.Node) -> fx.Node | None:
    """The node that uses this one's outputs, if it is the only one."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node computes a ReLU, however it is written."""
    if node.op == "call_function":
        return node.target in _RELUS
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return isinstance(module_of(traced, node), nn.ReLU)
