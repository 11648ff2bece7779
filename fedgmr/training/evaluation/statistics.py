"""The batch-norm layers of a module in evaluation mode: batch statistics for a while, or newly built statistics."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class BatchNorms:
    """The batch-norm layers of one module."""

    def __init__(self, module: nn.Module) -> None:
        self.layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]

    @contextmanager
    def batch_statistics(self) -> Iterator[None]:
        """Let the layers use batch statistics within the block, leaving the running ones alone."""
        tracking = [norm.track_running_stats for norm in self.layers]
        for norm in self.layers:
            norm.train()
            norm.track_running_stats = False
        try:
            yield
        finally:
            for norm, tracked in zip(self.layers, tracking, strict=True):
                norm.eval()
                norm.track_running_stats = tracked

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        """Build the running statistics again from the batches of the block, as a plain mean over them."""
        momenta = [norm.momentum for norm in self.layers]
        for norm in self.layers:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        yield
        for norm, momentum in zip(self.layers, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
