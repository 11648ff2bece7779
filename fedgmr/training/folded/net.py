"""The steps of many clients whose samples are one batch of an ordinary model.

The model's own code runs, with layers that know the clients (`layers.py`); gradients are written to rows beside the
weights, and one kernel moves all weights. Everything a step reads and writes stays where it is, or is taken from the
graph's own memory, so that the steps can be captured as one CUDA graph. Read next: `plan.py`;
`fedgmr/training/stacked/executor.py`, which calls it.
"""

import copy
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgmr.submodels.inputs import replaced_forward
from fedgmr.submodels.layout import Layout
from fedgmr.tasks.losses import CROSS_ENTROPIES
from fedgmr.training.execution import TRITON
from fedgmr.training.folded.narrow import SmallModules
from fedgmr.training.folded.plan import Call, FoldPlan
from fedgmr.training.folded.sides import Sides
from fedgmr.training.optimizers import SGD, Adam, Optimizer
from fedgmr.training.stacked.convolution import Ranges, cdiv
from fedgmr.training.stacked.rows import Rows
from fedgmr.training.stacked.table import Column
from fedgmr.training.work import LocalWork

if TRITON:
    from fedgmr.training.folded import adam, classes
    from fedgmr.training.folded.layers import Folded, Head, layer_of
    from fedgmr.training.folded.spans import Spans
    from fedgmr.training.folded.turned import Turned
    from fedgmr.training.stacked import row_kernels
    from fedgmr.training.stacked.ahead import compile_ahead, withheld

_log = logging.getLogger(__name__)
_SIZE = 1024  # of a block of a step
_TRIED = 3  # clients of a trial
_SIDES = 2  # streams beside the step's own
_MOST_SAMPLES = 64  # of a mini-batch: how larger ones compare with the graphed executor was not measured


class FoldedNet(Rows):
    """Up to `most` clients as one batch."""

    draws = True

    def __init__(
        self, plan: FoldPlan, work: LocalWork, optimizer: SGD | Adam, *, most: int, small: SmallModules | None = None
    ) -> None:
        """Take memory for tasks of `work` with the model of `plan`."""
        assert work.rule.stacking is not None
        sgd = optimizer if isinstance(optimizer, SGD) else SGD()
        size, blocks = plan.layout.buffer_size, len(small.widths) if small is not None and work.rule.per_width else 1
        super().__init__(plan.order, work, work.rule.stacking, sgd, most=most, buffers=blocks * size)
        self.plan, self.model = plan, plan.model.to(self.device).train()
        self.adam = optimizer if isinstance(optimizer, Adam) else None
        self.gradients = torch.zeros_like(self.weights)
        self.moments = torch.zeros((2 if self.adam else 0, *self.weights.shape), device=self.device)
        self.anchor = torch.zeros((), device=self.device, requires_grad=True)  # backward passes come to every layer
        self.count, self._draws, self._loss = 1, 0, work.task.loss
        # Two, because behind the weights' gradients of a large last layer the others would come too late.
        self._sides = Sides(self.device, _SIDES)
        self.beside = self._sides.beside
        self._seeds = torch.zeros(most, dtype=torch.int64, device=self.device)
        self._present = self.limits[0]  # of the step
        widths = small.widths if small is not None and small.scaled else None
        self._squares = None if widths is None else torch.tensor(widths, device=self.device).square()
        self._spans = Spans(plan.at, most, self.device) if small is not None else None
        self.turned = Turned(plan.at, most, self.device)
        self._statistics = {place.name: place for place in plan.layout.buffers}
        # Of the step. Where sub-models are by width, they are taken from the clients' and brought back: what a narrow
        # network does not have stays as it is, and there may be some for every width.
        self._running, self._buffer_levels = self.buffers, None
        if small is not None and size and work.rule.tracks_statistics:
            self._running = torch.zeros((most, size), device=self.device)
            self._buffer_levels = small.buffer_levels(plan.layout).to(self.device)
        head = _head_of(plan, work)
        self._head = None if head is None else Head(self, head)
        self.absent = work.rule.masked_loss  # clients lack classes, named in the table
        self.classes = self._head.module.out_features if self._head is not None else 0
        self._absent = torch.zeros((most, self.classes), dtype=torch.bool, device=self.device)
        calls = {call.layer: call for call in plan.calls}
        self._layers: list[tuple[nn.Module, Folded]] = []
        for module in self.model.modules():
            call = calls.get(module, Call(name="", layer=module, batched=True))
            layer = self._head if self._head is not None and call is plan.head else layer_of(self, call)
            self._layers += [] if layer is None else [(module, layer)]

    @classmethod
    def of(
        cls,
        work: LocalWork,
        model: nn.Module,
        layout: Layout,
        optimizer: Optimizer,
        *,
        most: int,
        small: SmallModules | None = None,
    ) -> "FoldedNet | None":
        """Fold a model; None where model, loss, rule, optimiser or number format do not allow it.

        `small` are its narrow networks, where sub-models are such.
        """
        stacking, exact = work.rule.stacking, work.execution.autocast == "none" and work.held_out is None
        if not TRITON or not exact or stacking is None or stacking.narrow != (small is not None):
            return None
        if not isinstance(optimizer, SGD | Adam):
            return None
        # What has fallen below a threshold would have to go on with its velocity.
        if isinstance(optimizer, SGD) and not optimizer.plain and stacking.mode == "threshold":
            return None
        if work.order.batch_size > _MOST_SAMPLES:
            return None
        example, untouched = work.task.example(_TRIED), None if small is None else copy.deepcopy(model)
        plan = FoldPlan.of(model, layout, example)
        if plan is None or (work.rule.masked_loss and _head_of(plan, work) is None):
            return None
        if small is not None and untouched is not None and not small.are_what_zeros_make(untouched, example):
            return None
        indices = torch.arange(work.order.batch_size, device=work.device) % len(work.task.train)
        inputs, targets = work.prepared(indices.view(1, -1), None)
        net = cls(plan, work, optimizer, most=most, small=small)
        with work.execution.number_formats(work.device, training=True):
            return net if net.stands_alone(inputs[0], targets[0]) else None

    def weight(self, name: str) -> Tensor:
        """A parameter of every client [count, ...], convolutions' channels last."""
        return self._view(self.alive, name)

    def gradient(self, name: str) -> Tensor:
        """The place for its gradient."""
        return self._view(self.gradients, name)

    def ranges(self, weight: str) -> Ranges | None:
        """The channels that clients have in this step before and behind a layer, by its weight; None: all."""
        return None if self._spans is None else self._spans.of(weight)

    def kept(self, name: str) -> Tensor | None:
        """Which numbers of a vector the clients have in this step, bool [count, ...]; None: all have all of them."""
        if not self.stacking.narrow:
            return None
        return self._view(self.levels, name) <= self._present[: self.count, None]

    def eps(self, eps: float) -> float | Tensor:
        """What a batch norm adds to the variance.

        Where HeteroFL divides hidden values by the width, which a norm undoes, it is small in comparison: the same as a
        smaller number beside values that are not divided.
        """
        return eps if self._squares is None else eps * self._squares[self._present[: self.count].long()]

    def statistic(self, name: str) -> Tensor:
        """A buffer of every client [count, ...]."""
        place = self._statistics[name]
        return self._running[: self.count, place.start : place.stop].view(self.count, *place.shape)

    @contextmanager
    def _own_statistics(self, limits: Tensor, count: int) -> Iterator[None]:
        """Those of the clients' widths are moved within."""
        if self._buffer_levels is None:
            yield
            return
        present, size = limits[:count].long(), self._running.shape[1]
        blocks = self.buffers[:count].view(count, -1, size)
        first = present if blocks.shape[1] > 1 else torch.zeros_like(present)
        at = first.view(-1, 1, 1).expand(-1, 1, size)
        before = blocks.gather(1, at)
        self._running[:count] = before[:, 0]
        yield
        held = self._buffer_levels <= present[:, None]
        blocks.scatter_(1, at, torch.where(held, self._running[:count], before[:, 0])[:, None])

    def next_draw(self) -> int:
        """A number for the next layer that draws, from 0 in every step."""
        self._draws += 1
        return self._draws - 1

    @property
    def seeds(self) -> Tensor:
        """Int64 [count], of the present step."""
        return self._seeds[: self.count]

    def lay_out(self, count: int) -> None:
        """Every client's sub-model and the beginning of its draws."""
        super().lay_out(count)
        self._seeds[:count].copy_(self.table[:count, Column.SEED])
        if self._spans is not None:
            self._spans.look(self.levels, count)
        if self.absent:
            classes.fetch[(cdiv(self.classes, _SIZE), count)](
                self.table, self._absent, self.classes, len(Column), Column.ABSENT, _SIZE
            )

    def step(self, number: int, inputs: Tensor, targets: Tensor, count: int) -> None:
        """Step `number` of `count` clients; inputs and targets [count, batch, ...]."""
        limits, grid = self.limits[number], (cdiv(self.row, _SIZE), count)
        self._show(limits, count)
        with self._own_statistics(limits, count):
            self.losses[:count].add_(self._losses(inputs, targets, count), alpha=1 / self.steps)
        if self.adam is None:
            row_kernels.reduce_step[grid](
                self.gradients, *self.descent(limits), self.row, 0, 1, self.row, *self.rules, _SIZE
            )
        else:
            adam.step[grid](
                self.weights, self.gradients, self.levels, self.fallen, limits, self.thetas, self.rates, *self.moments,
                self.row, *adam.numbers(self.adam, number + 1), number == 0, *self.rules[:2], _SIZE,
            )  # fmt: skip
        self._seeds[:count].add_(1)

    def _show(self, limits: Tensor, count: int) -> None:
        """Let the layers compute with the weights of a step, and with its channels."""
        self._present = limits
        self.show(limits, count)
        if self._spans is not None:
            self._spans.find(limits, count)

    def _losses(self, inputs: Tensor, targets: Tensor, count: int) -> Tensor:
        """Every client's loss; its gradients are in their rows then."""
        self.count, self._draws = count, 0
        self._sides.forget()
        if self.turned:
            with self.beside(self.alive):
                self.turned.turn(self.alive, count)
        with torch.enable_grad(), ExitStack() as changed:
            for module, layer in self._layers:
                changed.enter_context(replaced_forward(module, layer.forward))
            outputs = self.model(inputs.flatten(0, 1))
            if self._head is not None:
                weights = CROSS_ENTROPIES[self._loss](targets).flatten(1).contiguous()
                absent = self._absent[:count] if self.absent else None
                losses = self._head.loss(outputs, targets.flatten(1).contiguous(), weights, absent)
            elif withheld():  # a loss may refuse outputs that nothing has computed
                losses = outputs.reshape(count, -1).sum(1)
            else:  # one client after the other: it is not known what the loss does with its samples
                each = zip(outputs.unflatten(0, (count, -1)), targets, strict=True)
                losses = torch.stack([self._loss(own, wanted) for own, wanted in each])
            self._sides.wait()
            torch.autograd.grad(losses.sum(), self.anchor, allow_unused=True)
        self._sides.wait()
        return losses.detach()

    def stands_alone(self, inputs: Tensor, targets: Tensor) -> bool:
        """Try whether clients have the same losses and gradients, bit for bit, alone and in company, and captured.

        Inputs and targets are a mini-batch's. A model that computes something from several samples at once, that
        cannot do with so many, or that waits for the device in between, fails here.
        """
        count, generator = min(_TRIED, self.most), torch.Generator().manual_seed(0)
        start = torch.zeros(self.row)
        start[self.inverse.cpu().long()] = self.plan.layout.flatten(self.model).cpu()
        noise = torch.randn((count, self.row), generator=generator) * start.std()
        mixed = torch.where(start != 0, start + 0.1 * noise, start).to(self.device)
        chosen = torch.stack([torch.randperm(len(inputs), generator=generator) for _ in range(count)]).to(self.device)
        given, wanted = inputs[chosen], targets[chosen]
        try:
            compile_ahead(lambda: [self._tried(mixed[:n], given[:n], wanted[:n]) for n in {1, count}])
            together = self._tried(mixed, given, wanted)
            # Clones, because in a step, too, a client alone begins where memory does: kernels are compiled for that.
            each = [self._tried(*(t[i : i + 1].clone() for t in (mixed, given, wanted))) for i in range(count)]
            alone = [torch.cat(parts) for parts in zip(*each, strict=True)]
            captured = alone if not self._sides.streams else self._tried(mixed, given, wanted, captured=True)
        except Exception as error:  # whatever it is, another executor can train the model
            _log.warning("The clients of this net are not folded into one batch: %s", error)
            if self._sides.streams:
                torch.cuda.synchronize(self.device)
            return False
        return all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(together, alone, captured, strict=True))

    def _tried(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, *, captured: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Losses and gradients of clients with these weights; `captured`: as a CUDA graph has them."""
        count = len(weights)
        self.weights[:count] = weights
        self._show(self.limits[0], count)
        self.gradients.zero_()
        self._seeds.zero_()
        self._running.zero_()
        if not captured:
            return self._losses(inputs, targets, count), self.gradients[:count].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            losses = self._losses(inputs, targets, count)
        graph.replay()
        return losses.clone(), self.gradients[:count].clone()

    def _view(self, rows: Tensor, name: str) -> Tensor:
        at, shape = self.plan.at[name]
        return rows[: self.count, at : at + shape.numel()].view(self.count, *shape)


def _head_of(plan: FoldPlan, work: LocalWork) -> Call | None:
    """The last linear layer, where the loss is one that can be computed with it."""
    targets = work.task.train.targets  # of cross-entropy they may also be shares of the classes, or pixels'
    known = work.task.loss in CROSS_ENTROPIES and targets.dtype == torch.int64
    return plan.head if known and (work.task.loss is not functional.cross_entropy or targets.dim() == 1) else None
