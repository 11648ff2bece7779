"""Copies of small tensors to and from a device that do not make the host wait for the device."""

from collections.abc import Sequence

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


class Fetched:
    """A small tensor that a device makes and copies to the host while the host does other things."""

    def __init__(self, tensor: Tensor) -> None:
        """Order the copy."""
        self._tensor, self._event = tensor, None
        if tensor.device.type == "cuda":
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(tensor.device))

    @property
    def ready(self) -> bool:
        """Whether nobody has to wait."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    @property
    def values(self) -> Sequence[float]:
        """The numbers; whoever asks before they are there waits."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.tolist()
