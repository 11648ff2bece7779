"""Copies to the host: read when they are complete, and not before, however late a device makes them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedgmr import transfer
from fedgmr.transfer import Fetched


class Room:
    """Memory of the host's, in which a copy lands when the device comes to it."""

    def __init__(self, device: "Device") -> None:
        self.device, self.numbers = device, [7.0]

    def copy_(self, source: Any, *, non_blocking: bool) -> None:
        assert non_blocking
        self.device.ordered.append((self, source.tensor.tolist()))  # a stream's work keeps its order

    def tolist(self) -> list[float]:
        return self.numbers


class Device:
    """A stream whose work is done when somebody waits for it."""

    def __init__(self) -> None:
        self.ordered: list[tuple[Room, list[float]]] = []
        self.done = 0

    def work(self, until: int) -> None:
        for room, numbers in self.ordered[self.done : until]:
            room.numbers = numbers
        self.done = max(self.done, until)


class Event:
    """Behind what was ordered when it was recorded."""

    def record(self, stream: Device) -> None:
        self.stream, self.behind = stream, len(stream.ordered)

    def query(self) -> bool:
        return self.stream.done >= self.behind

    def synchronize(self) -> None:
        self.stream.work(self.behind)


def on(device: Device, *numbers: float) -> Any:
    tensor: Tensor = torch.tensor(numbers)
    return SimpleNamespace(tensor=tensor, device=torch.device("cuda"), shape=tensor.shape, dtype=tensor.dtype)


def emulated(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device to which all copies are ordered from now on."""
    device = Device()
    cuda = SimpleNamespace(Event=Event, current_stream=lambda _: device)
    monkeypatch.setattr(transfer, "torch", SimpleNamespace(empty=lambda *_, **__: Room(device), cuda=cuda))
    return device


def test_numbers_are_read_when_their_copy_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    device = emulated(monkeypatch)
    first, second, third = (Fetched(on(device, number)) for number in (1.0, 2.0, 3.0))
    assert not first.ready
    assert second.values == [2.0], "waited for"
    assert first.ready
    assert not third.ready
    assert (first.values, device.done) == ([1.0], 2), "without waiting for what was ordered later"
    assert third.values == [3.0]


def test_a_hosts_numbers_are_there() -> None:
    fetched = Fetched(torch.tensor([1.0, 2.5]))
    assert fetched.ready
    assert fetched.values == [1.0, 2.5]
