"""Tasks carried to clients as real bytes: encoded, counted, decoded and put together on the other side.

The simulated network only computes sizes. This one sends the objects: with IMS a MAP (where a receiver lacks it) and a
VALUES object per gap between neighbouring levels in use, without it one of each per client.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedgmr import wire
from fedgmr.exchange import ClientTask, Update

_RUN = 7


@dataclass
class Mailroom:
    """Clients that remember their level map, and the bytes that went to each."""

    ims: bool
    maps: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)  # by client: version, levels
    server_bytes: int = 0
    down: dict[int, int] = field(default_factory=dict)  # by client, of the last delivery
    objects: int = 0

    def deliver(self, tasks: Sequence[ClientTask]) -> dict[int, Tensor]:
        """By client: the flat model it puts together from what it receives, zero outside its sub-model."""
        self.down = {task.client: 0 for task in tasks}
        received: dict[int, list[np.ndarray]] = {task.client: [] for task in tasks}
        for first, last, receivers in self._objects(tasks):
            values = _values(receivers[0], first, last)
            self._send(values, receivers)
            self._send_map(receivers, first, last)
            for task in receivers:
                expected = wire.Expected(run=_RUN, client=task.client, version=task.version, first=first, last=last)
                limits = wire.Limits(values=len(task.model), buffers=len(task.buffers))
                decoded = wire.decode_values(values, expected=expected, limits=limits)
                received[task.client].append(decoded.values)
                if first == 0:
                    assert decoded.buffers.tobytes() == task.buffers.numpy().tobytes()
        return {task.client: self._assembled(task, np.concatenate(received[task.client])) for task in tasks}

    def _objects(self, tasks: Sequence[ClientTask]) -> Iterable[tuple[int, int, list[ClientTask]]]:
        if not self.ims:
            for task in tasks:
                yield 0, task.level, [task]
            return
        first = 0
        for last in sorted({task.level for task in tasks}):
            yield first, last, [task for task in tasks if task.level >= last]
            first = last + 1

    def _send(self, data: bytes, receivers: Sequence[ClientTask]) -> None:
        self.objects += 1
        self.server_bytes += len(data)
        for task in receivers:
            self.down[task.client] += len(data)

    def _send_map(self, receivers: Sequence[ClientTask], first: int, last: int) -> None:
        if receivers[0].levels.implied:
            return  # the clients can work it out
        version, levels = receivers[0].map_version, receivers[0].levels.levels.numpy()
        lacking = [task for task in receivers if self._lacks(task, last)]
        if not lacking:
            return
        data = wire.encode_map(levels, stamp=_stamp(receivers[0]), first=first, last=last)
        self._send(data, lacking)
        for task in lacking:
            expected = wire.Expected(run=_RUN, client=task.client, map_version=version, first=first, last=last)
            known = self.maps[task.client][1] if first else None
            decoded = wire.decode_map(data, total=len(levels), expected=expected, known=known)
            self.maps[task.client] = (version, decoded)

    def _lacks(self, task: ClientTask, last: int) -> bool:
        version, levels = self.maps.get(task.client, (-1, np.empty(0, np.uint8)))
        below = levels[levels != wire.ABOVE]
        return version != task.map_version or int(below.max(initial=0)) < last

    def _assembled(self, task: ClientTask, values: np.ndarray) -> Tensor:
        levels = task.levels.levels.numpy() if task.levels.implied else self.maps[task.client][1]
        flat, start = torch.zeros_like(task.model), 0
        for level in range(task.level + 1):
            places = torch.from_numpy(np.flatnonzero(levels == level))
            flat[places] = torch.from_numpy(values[start : start + len(places)])
            start += len(places)
        assert start == len(values)
        return flat


def encoded_update(task: ClientTask, update: Update) -> bytes:
    """What the client sends back."""
    report = update.report and wire.Report(
        metric_sum=update.report.metric * update.report.samples, samples=update.report.samples
    )
    buffers = update.buffers.numpy()
    stamp = _stamp(task, client=task.client)
    values = task.levels.pack(update.values, task.level) if update.natural else update.values
    return wire.encode_update(values.numpy(), stamp=stamp, last=task.level, buffers=buffers, report=report)


def submodel(task: ClientTask) -> Tensor:
    """What the client should train from: the model, zero outside the sub-model."""
    return torch.where(task.levels.levels <= task.level, task.model, 0.0)


def _values(task: ClientTask, first: int, last: int) -> bytes:
    parts = [task.model[task.levels.levels == level] for level in range(first, last + 1)]
    buffers = task.buffers.numpy() if first == 0 else None
    stamp = _stamp(task)
    return wire.encode_values(torch.cat(parts).numpy(), stamp=stamp, first=first, last=last, buffers=buffers)


def _stamp(task: ClientTask, client: int = wire.EVERYONE) -> wire.Stamp:
    return wire.Stamp(run=_RUN, client=client, version=task.version, map_version=task.map_version)
