"""Small tensors on their way to a device, without making the host wait for what the device is doing."""

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def send(tensor: Tensor, room: Tensor) -> None:
    """Copy a CPU tensor to where `room` is on its device."""
    if room.device.type == "cuda":
        room.copy_(tensor.pin_memory(), non_blocking=True)
    else:
        room.copy_(tensor)
