"""The merge equations (section 3.4) on dense [clients, coordinates] values and masks, for the rules to be held to."""

import torch
from torch import Tensor


def mask_aware_mean(values: Tensor, masks: Tensor, weights: Tensor, previous: Tensor) -> Tensor:
    """MA: per coordinate the weighted mean over the clients that hold it; `previous` where nobody does.

    Args:
        values: float [C, N], one model per client.
        masks: bool [C, N], the coordinates each client holds.
        weights: [C], at least 0.
        previous: float [N], the model before the merge.
    """
    total, weight = _weighted_sums(values, masks, weights)
    return torch.where(weight > 0, total / weight.clamp(min=torch.finfo(weight.dtype).tiny), previous)


def zero_padded_mean(values: Tensor, masks: Tensor, weights: Tensor) -> Tensor:
    """FA: the weighted mean over all clients, a coordinate that a client does not hold counting as zero."""
    total, _ = _weighted_sums(values, masks, weights)
    return total / weights.to(values.dtype).sum()


def gradient_average(deltas: Tensor, masks: Tensor, weights: Tensor, previous: Tensor, clients: int) -> Tensor:
    """GA: previous + (1/clients)·Σ weight·delta on the coordinates held; each delta is applied once."""
    total, _ = _weighted_sums(deltas, masks, weights)
    return previous + total / clients


def _weighted_sums(values: Tensor, masks: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    total, weight = torch.zeros_like(values[0]), torch.zeros_like(values[0])
    for row, mask, w in zip(values, masks, weights.tolist(), strict=True):
        total.add_(torch.where(mask, row, 0), alpha=w)
        weight.add_(mask.to(weight.dtype), alpha=w)
    return total, weight
