"""The batch-norm layers of a module in evaluation mode: batch statistics for a while, or newly built statistics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

# The statistics that a model is tested and handed out with; `EvaluationSettings.norm` explains the words.
Norm = Literal["rebuilt", "running", "batch"]


class BatchNorms:
    """The batch-norm layers of one module, or no layers."""

    def __init__(self, module: nn.Module | None = None) -> None:
        modules = () if module is None else module.modules()
        self.layers = [layer for layer in modules if isinstance(layer, nn.modules.batchnorm._BatchNorm)]

    @contextmanager
    def batch_statistics(self, *, rebuild: bool = False) -> Iterator[Callable[[int], None]]:
        """Let the layers use batch statistics within the block, leaving the running ones alone.

        With `rebuild` the running ones become the plain mean over the block's batches; then the block calls what it is
        given before each batch, with the number of the batch from 0.
        """
        before = [(norm.training, norm.track_running_stats, norm.momentum) for norm in self.layers]
        for norm in self.layers:
            if rebuild:
                norm.reset_running_stats()
            norm.train()
            norm.track_running_stats = rebuild

        def begin(batch: int) -> None:
            for norm in self.layers:
                norm.momentum = 1 / (batch + 1)  # PyTorch's own plain mean asks the device for the number

        try:
            yield begin
        finally:
            for norm, (training, tracked, momentum) in zip(self.layers, before, strict=True):
                norm.train(training)
                norm.track_running_stats, norm.momentum = tracked, momentum
