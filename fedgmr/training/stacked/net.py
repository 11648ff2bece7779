"""The steps of many clients of a chain at once: memory for their layers, and which kernel does what.

Everything a step reads and writes stays where it is, so that the steps can be captured as one CUDA graph. Read next:
`executor.py`; `convolution.py`, `linear_kernels.py`.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.submodels.layout import Layout
from fedgmr.tasks.losses import one_hot_bce
from fedgmr.training.execution import TRITON
from fedgmr.training.optimizers import SGD, Optimizer
from fedgmr.training.stacked.convolution import EXACT, Convolution, Ranges, Tiles, cdiv, power
from fedgmr.training.stacked.plan import Conv, Linear, StackPlan
from fedgmr.training.stacked.rows import Rows
from fedgmr.training.stacked.table import Column
from fedgmr.training.work import LocalWork

if TRITON:
    from fedgmr.training.stacked import linear_kernels, range_kernels, row_kernels

_SIZE = 1024
_MOST_OUTPUTS = 1 << 20  # of a mini-batch, which are one block of the loss's kernel
_LOSSES = (one_hot_bce, functional.cross_entropy)


class StackedNet(Rows):
    """Up to `most` clients of a chain side by side."""

    def __init__(self, plan: StackPlan, work: LocalWork, sgd: SGD, *, most: int) -> None:
        """Take memory for tasks of `work` with the model of `plan`."""
        assert work.rule.stacking is not None
        super().__init__(plan.order, work, work.rule.stacking, sgd, most=most)
        self.plan, self.classes, device = plan, plan.layers[-1].outputs, self.device
        self.binary = work.task.loss is one_hot_bce
        self.absent = work.rule.masked_loss  # clients lack classes, named in the table
        # By convolution and one further: the first of a client's channels before it, and behind the last.
        self.convs = [
            Convolution.of_chain(layer, self.batch, self.precision) for layer in plan.layers if isinstance(layer, Conv)
        ]
        layers = [conv.layer for conv in self.convs]  # of a chain the first
        counts = [layer.inputs for layer in layers[:1]] + [layer.outputs for layer in layers]
        self.ranges = torch.zeros((len(counts), 2, 32 * cdiv(most, 32)), dtype=torch.int32, device=device)
        for count, row in zip(counts, self.ranges, strict=True):
            row[1] = count
        self.outputs = [self._room(layer.numbers) for layer in plan.layers]
        pooled = [isinstance(layer, Conv) and layer.pool for layer in plan.layers]
        self.codes = [
            torch.zeros_like(room, dtype=torch.uint8) if pool else room[:0].to(torch.uint8)
            for room, pool in zip(self.outputs, pooled, strict=True)
        ]
        # The gradient behind each layer's linear part: as large as its outputs before the maximum.
        self.slopes = [
            self._room(layer.numbers * (4 if pool else 1)) for layer, pool in zip(plan.layers, pooled, strict=True)
        ]
        self.shares = [conv.share for conv in self.convs]
        lengths = [
            splits * _span(layer) for layer, (_, splits) in zip(layers, self.shares, strict=True) if self._apart(splits)
        ]
        self.parts = torch.zeros(most * max(lengths, default=0), device=device)

    @classmethod
    def of(
        cls, work: LocalWork, model: nn.Module, layout: Layout, optimizer: Optimizer, *, most: int
    ) -> "StackedNet | None":
        """Stack a chain; None where model, loss, rule, optimiser or number format do not allow it."""
        targets = work.task.train.targets
        stacking, exact = work.rule.stacking, work.execution.autocast == "none" and work.held_out is None
        if not TRITON or not exact or stacking is None or work.rule.scaler or work.task.loss not in _LOSSES:
            return None
        # What has fallen below a threshold stays where it is in a stack, and would have to go on with its velocity.
        if not optimizer.plain and not (isinstance(optimizer, SGD) and stacking.mode != "threshold"):
            return None
        if targets.dim() != 1 or targets.dtype != torch.int64:
            return None
        sample = work.task.example(1)
        if not isinstance(sample, Tensor) or sample.dtype != torch.float32:
            return None
        plan = StackPlan.of(model, layout, sample.shape[1:], work.order.batch_size)
        if plan is None or power(work.order.batch_size) * power(plan.layers[-1].outputs) > _MOST_OUTPUTS:
            return None
        if work.task.loss is functional.cross_entropy and bool((targets < 0).any()):  # those it leaves out
            return None
        return cls(plan, work, optimizer if isinstance(optimizer, SGD) else SGD(), most=most)

    def arranged(self, inputs: Tensor) -> Tensor:
        """The numbers of each step's inputs, images channels last."""
        if inputs.dim() == 5:
            inputs = inputs.permute(0, 1, 3, 4, 2)
        return inputs.reshape(len(inputs), -1)

    def step(self, number: int, inputs: Tensor, targets: Tensor, count: int) -> None:
        """Step `number` of `count` clients; inputs [client, sample · pixel · channel], targets [client, sample]."""
        limits = self.limits[number]
        layers = self.plan.layers
        if self.stacking.narrow and (number == 0 or self.stacking.mode == "level"):
            self._find_ranges(limits, count)
        self.show(limits, count)
        values = [inputs, *self.outputs]
        for i, layer in enumerate(layers):
            if isinstance(layer, Conv):
                room = self.outputs[i], self.codes[i]
                self.convs[i].forward(values[i], self.alive, self._ranges(i), *room, count)
            else:
                self._linear_forward(i, layer, values[i], count)
        self._loss(targets, count)
        for i, layer in reversed(list(enumerate(layers))):
            if isinstance(layer, Conv):
                if i > 0:
                    room = self.codes[i - 1], self.slopes[i - 1]
                    self.convs[i].backward(
                        self.slopes[i], self.alive, self._ranges(i), values[i], *room, count,
                        pooled=self.convs[i - 1].layer.pool,
                    )  # fmt: skip
                self._conv_step(i, values[i], limits, count)
            else:
                self._linear_step(i, layer, values[i], limits, count)

    def _find_ranges(self, limits: Tensor, count: int) -> None:
        """The channels of a step; ranges of the input itself stay."""
        self.ranges[1:, 0].fill_(torch.iinfo(torch.int32).max)
        self.ranges[1:, 1].zero_()
        for conv, (first, last) in zip(self.convs, self.ranges[1:], strict=True):
            layer = conv.layer
            range_kernels.find_range[(layer.outputs, count)](
                self.levels, limits, first, last, self.row, layer.weight_at, layer.bias_at, layer.depth, _SIZE
            )

    def _conv_step(self, i: int, inputs: Tensor, limits: Tensor, count: int) -> None:
        conv, descent, splits = self.convs[i], self.descent(limits), self.shares[i][1]
        span, apart = _span(conv.layer), self._apart(splits)
        conv.step(
            inputs, self.slopes[i], descent, self.rules, self._ranges(i), self.parts, span, count, self.shares[i],
            apart=apart,
        )  # fmt: skip
        if apart:
            row_kernels.reduce_step[(cdiv(span, 256), count)](
                self.parts, *descent, self.row, conv.layer.weight_at, splits, span, *self.rules, 256
            )

    def _linear_forward(self, i: int, layer: Linear, inputs: Tensor, count: int) -> None:
        tiles, weights, outputs = self._tiles("forward", layer), self.alive, self.outputs[i]
        linear_kernels.linear_product[(1, cdiv(layer.outputs, tiles.columns), count)](
            inputs, weights[:, layer.weight_at :], weights[:, layer.bias_at :], outputs, inputs, inputs, 0,
            inputs.stride(0), self.row, self.row, outputs.stride(0), self.batch, layer.outputs, layer.inputs, 1,
            layer.inputs, tiles.rows, tiles.columns, tiles.depth, layer.inputs % tiles.depth == 0, True, layer.relu,
            False, self.precision, **tiles.launch,
        )  # fmt: skip

    def _linear_step(self, i: int, layer: Linear, inputs: Tensor, limits: Tensor, count: int) -> None:
        tiles = self._tiles("step", layer)
        first, before = i == 0, self.plan.layers[i - 1]
        pooled = not first and isinstance(before, Conv) and before.pool
        behind = self.slopes[i] if first else self.slopes[i - 1]
        width = before.out_width // 2 if isinstance(before, Conv) else 1
        linear_kernels.linear_step[(cdiv(layer.inputs, tiles.columns), 1, count)](
            self.slopes[i], inputs, self.codes[i - 1], behind, self.alive, *self.descent(limits), self.row,
            layer.weight_at, layer.bias_at, self.slopes[i].stride(0), inputs.stride(0), behind.stride(0), self.batch,
            layer.inputs, layer.outputs, width, before.outputs, tiles.rows, tiles.depth, tiles.columns, first, pooled,
            *self.rules, self.precision, **tiles.launch,
        )  # fmt: skip

    def _loss(self, targets: Tensor, count: int) -> None:
        outputs, slopes, classes = self.outputs[-1], self.slopes[-1], self.classes
        linear_kernels.loss_slopes[(count,)](
            outputs, targets, self.table, slopes, self.losses, outputs.stride(0), targets.stride(0), self.batch,
            classes, 1 / self.steps, len(Column), power(self.batch), power(classes), self.binary, self.absent,
        )  # fmt: skip

    def _tiles(self, what: Literal["forward", "step"], layer: Linear) -> Tiles:
        """The block sizes of a linear layer's products: the fastest on an H200 for layers of this size."""
        samples = power(self.batch)
        if self.precision == "ieee":
            return replace(EXACT, rows=samples)
        if what == "forward" and layer.inputs * layer.outputs >= 1 << 20:
            return Tiles(rows=samples, columns=32, depth=128, warps=2)
        if what == "forward":
            return Tiles(rows=samples, columns=16, depth=128)
        if self._crowded:  # with larger tiles registers do not suffice
            return Tiles(rows=samples, columns=32, depth=32)
        if layer.outputs <= 64:
            return Tiles(rows=samples, columns=64, depth=32)
        return Tiles(rows=samples, columns=32, depth=64, warps=2)

    @property
    def _crowded(self) -> bool:
        """Whether more vectors are at hand in a step: those of thresholds, or the velocity."""
        return self.stacking.mode == "threshold" or self.sgd.momentum > 0

    def _apart(self, splits: int) -> bool:
        """Whether a convolution's gradient and its step are two kernels: registers do not suffice for both."""
        return splits > 1 or self._crowded

    def _ranges(self, i: int) -> Ranges:
        """Of the channels before and behind convolution `i`."""
        return Ranges(self.ranges[i], self.ranges[i + 1], self.ranges.stride(1), self.stacking.narrow)

    def _room(self, numbers: int) -> Tensor:
        return torch.zeros((self.most, self.batch * numbers), device=self.device)


def _span(layer: Conv) -> int:
    """From the first weight of a layer to behind its last bias."""
    assert layer.bias_at is not None
    return layer.bias_at + layer.outputs - layer.weight_at
