"""Values that travel in 16 bits: an update that they cannot hold has diverged."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedgmr.exchange import ClientTask, Update
from fedgmr.fleets.rounding import RoundingExecutor
from fedgmr.submodels.levels import LevelMap
from fedgmr.wire import ValueType

LEVELS = LevelMap(torch.tensor([1, 0, 0], dtype=torch.uint8), (0.5, 1.0))
MODEL = torch.tensor([1.0, 2.0, 3.0])


class Answers:
    """Sends these values back, whatever is asked."""

    ahead = False

    def __init__(self, values: Sequence[float], loss: float | Tensor) -> None:
        self.values, self.loss = torch.tensor(values), loss

    def train(self, tasks: Sequence[ClientTask]) -> list[Update]:
        more: dict[str, Any] = {"buffers": torch.tensor([9.0]), "memory": torch.ones(3)}
        return [Update(client=0, version=0, values=self.values, loss=self.loss, **more) for _ in tasks]


def sent(values: Sequence[float], loss: float | Tensor) -> Update:
    task = ClientTask(
        client=0,
        version=0,
        level=0,
        levels=LEVELS,
        map_version=0,
        model=MODEL,
        buffers=torch.tensor([4.0, 5.0]),
        learning_rate=0.1,
        first_batch=0,
    )
    (update,) = RoundingExecutor(Answers(values, loss), ValueType.FP16).train([task])
    return update


@pytest.mark.parametrize("loss", [0.5, torch.tensor(0.5)])
def test_values_are_rounded(loss: float | Tensor) -> None:
    update = sent([2049.0, 65504.0], loss)  # 11 bits; the largest of fp16
    assert update.values.tolist() == [2048.0, 65504.0]
    assert (update.loss, update.buffers.tolist()) == (0.5, [9.0])


def test_an_update_that_16_bits_cannot_hold_has_diverged() -> None:
    assert math.isnan(sent([1.0, 70000.0], 0.5).loss)
    on_device = sent([1.0, 70000.0], torch.tensor(0.5))
    assert math.isnan(on_device.loss)
    assert on_device.values.tolist() == [2.0, 3.0], "what it was given, in level order"
    assert on_device.buffers.tolist() == [4.0], "of the widths that it sends"
    assert on_device.memory is not None
    assert not on_device.memory.any()
