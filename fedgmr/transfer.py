"""Copies of small tensors to a device that do not make the host wait for the device."""

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def send(tensor: Tensor, room: Tensor) -> None:
    """Copy a CPU tensor into `room`, a tensor on any device."""
    if room.device.type == "cuda":
        room.copy_(tensor.pin_memory(), non_blocking=True)
    else:
        room.copy_(tensor)
