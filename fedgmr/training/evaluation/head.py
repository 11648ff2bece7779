"""Measuring without outputs: where they are those of a last linear layer, and measures and loss need few of them.

Accuracy among the highest outputs needs to know how many are ahead of the target's, cross-entropy their log-sum-exp.
Any model has it whose outputs are a linear layer's as it returns them. Read next: `ranks.py`, the kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgmr.submodels.inputs import Inputs, as_written, outputs_of
from fedgmr.tasks.losses import CROSS_ENTROPIES
from fedgmr.tasks.metrics import Among, Count
from fedgmr.tasks.task import Task
from fedgmr.training.execution import TRITON

if TRITON:
    from fedgmr.training.evaluation.ranks import ranks

LEAST_CLASSES = 2048  # from here on outputs are not written


@dataclass(frozen=True, kw_only=True)
class Head:
    """A last linear layer, the measures, and the loss as weights of cross-entropies."""

    layer: nn.Linear
    measures: Sequence[Among]
    weigh: Callable[[Tensor], Tensor]  # the weights of targets [clients, batch, ...]
    precision: str

    @classmethod
    def of(cls, task: Task, module: nn.Module, *, precision: str) -> "Head | None":
        """The head of a task's model; None where outputs have to be written, or are few."""
        measures = [metric.measure for metric in task.metrics if isinstance(metric.measure, Among)]
        weigh, targets = CROSS_ENTROPIES.get(task.loss), task.test.targets
        if not TRITON or len(measures) < len(task.metrics) or weigh is None or targets.dtype != torch.int64:
            return None
        inputs, targets = task.test[:1]
        layer = last_linear(module, task.inputs(inputs), targets)
        if layer is None or layer.out_features < LEAST_CLASSES:
            return None
        return cls(layer=layer, measures=measures, weigh=weigh, precision=precision)

    def read(self, hidden: Tensor, targets: Tensor) -> tuple[list[tuple[Tensor, Count]], Tensor]:
        """What each measure sums and counts, and the loss; `hidden` is what the layer is given."""
        weights, targets = self.weigh(targets[None]).flatten(), targets.flatten()
        read = weights != 0
        for measure in self.measures:
            read = read | measure.counted(targets)
        b = self.layer.bias
        ahead, losses = ranks(hidden.flatten(0, -2).contiguous(), self.layer.weight, b, targets, read, self.precision)
        sums = [measure.summed(ahead < measure.k, targets) for measure in self.measures]
        return sums, (weights * losses).where(weights != 0, 0).sum()


@torch.no_grad()
def last_linear(module: nn.Module, inputs: Inputs, targets: Tensor) -> nn.Linear | None:
    """The layer whose outputs, one row for each target, are the model's; None where something else makes them.

    They are in single precision, and nothing has changed them in place.
    """
    seen: list[tuple[nn.Linear, Tensor, int]] = []

    def watch(layer: nn.Module, given: Any, found: Any) -> None:
        assert isinstance(layer, nn.Linear)
        seen.append((layer, found, found._version))

    hooks = [m.register_forward_hook(watch) for m in module.modules() if type(m) is nn.Linear and as_written(m)]
    try:
        outputs = outputs_of(module, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    layers = [layer for layer, found, version in seen if found is outputs and found._version == version]
    once = len(layers) == 1 and [layer for layer, *_ in seen].count(layers[0]) == 1
    fits = once and outputs.shape[:-1] == targets.shape and outputs.dtype == torch.float32
    return layers[0] if fits else None
