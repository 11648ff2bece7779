"""Compiled steps: forward and backward pass of a model fused by torch.compile, one compilation for all slots.

The model's tensors are arguments, so slots share what was compiled. A model that cannot be compiled trains as it is.
"""

import copy
from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedgmr.training.bench import Loss

# (the module's tensors by name, inputs, targets, classes to leave out) -> loss
Evaluate = Callable[[Mapping[str, Tensor], Tensor, Tensor, Tensor | None], Tensor]


class Compiler:
    """Functions compiled so far, by what they were compiled for."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Evaluate] = {}

    def evaluate(self, key: Hashable, module: nn.Module, loss: Loss) -> Evaluate:
        """The loss of a module like `module`, as a function of its tensors."""
        if key not in self._made:
            template = copy.deepcopy(module)

            def evaluate(
                tensors: Mapping[str, Tensor], inputs: Tensor, targets: Tensor, absent: Tensor | None
            ) -> Tensor:
                outputs = functional_call(template, dict(tensors), (inputs,))
                return loss(outputs if absent is None else outputs.masked_fill(absent, 0), targets)

            self._made[key] = torch.compile(evaluate, dynamic=False)
        return self._made[key]
