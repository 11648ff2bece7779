"""The losses of the paper's tasks (A29): binary cross-entropy on one-hot labels, tokens without padding.

A token of number `PAD` fills a sequence up: as a target it is never counted, and trained only where a task asks for it.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

PAD = 0


def one_hot_bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy with logits on one-hot labels, mean over batch and classes."""
    one_hot = torch.zeros_like(outputs).scatter(-1, targets.unsqueeze(-1), 1.0)
    return functional.binary_cross_entropy_with_logits(outputs, one_hot)


def token_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of [batch, length, vocabulary] outputs, mean over the targets that are no padding; 0 for none."""
    total = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=PAD, reduction="sum")
    return total / (targets != PAD).sum().clamp(min=1)


def padded_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of [batch, length, vocabulary] outputs, padding included up to the longest text of the batch."""
    reached = (targets != PAD).any(0)
    each = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)
    return (each * reached).sum() / (reached.sum() * len(targets)).clamp(min=1)


def _counted(targets: Tensor, ignored: int, least: int) -> Tensor:
    real = (targets != ignored).flatten(1)
    return (real / real.sum(1, keepdim=True).clamp(min=least)).view(targets.shape)


def _reached(targets: Tensor) -> Tensor:
    reached = (targets != PAD).any(1, keepdim=True)
    return (reached / (reached.sum(2, keepdim=True) * targets.shape[1]).clamp(min=1)).expand_as(targets)


# Losses that are weighted sums of cross-entropies: the weights, from targets [count, batch, ...] of every client.
CROSS_ENTROPIES: Mapping[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    functional.cross_entropy: partial(_counted, ignored=-100, least=0),  # over nothing no number, as PyTorch's
    token_cross_entropy: partial(_counted, ignored=PAD, least=1),
    padded_cross_entropy: _reached,
}
