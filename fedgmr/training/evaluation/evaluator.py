"""Evaluation of flat models: metrics and loss on the test set, and on the server's validation set.

A model is measured with batch-norm statistics that fit it (`EvaluationSettings.norm`): averaged running statistics of
clients with sub-models fit no model at all (A11). Read next: `statistics.py`; `fedgmr/experiments/views.py`, the models
of a run that are measured.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial

import torch
from torch import Tensor

from fedgmr.submodels.inputs import Inputs, outputs_of, replaced_forward
from fedgmr.submodels.layout import Layout, lies_channels_last
from fedgmr.tasks.metrics import Count, Metric, mean, summed
from fedgmr.tasks.samples import Samples
from fedgmr.tasks.task import Task
from fedgmr.training.chains import Chain, channels_last
from fedgmr.training.evaluation.head import Head
from fedgmr.training.evaluation.replayed import Replayed, Sums
from fedgmr.training.evaluation.statistics import BatchNorms, Norm
from fedgmr.training.execution import TRITON, ExecutionSettings
from fedgmr.training.graphed.fused import fuse
from fedgmr.transfer import Fetched

_ON_CUDA = 4  # times the task's evaluation batch: fewer and larger kernels
_UNWRITTEN = 4  # times as many again where outputs, the largest thing there is, are not written


class Measurement:
    """The metrics (0..1 for accuracies) and the mean loss, over what each metric counts: samples, or tokens.

    A GPU may still be computing them; whoever asks for one waits.
    """

    def __init__(self, metrics: Sequence[Metric], sums: Sums) -> None:
        """`sums`: of every metric, its count behind, then the loss's; they are made on the current stream."""
        self._metrics, self._widths = metrics, sums[1]
        self._sums = Fetched(sums[0])  # now: whoever asks waits for nothing that is measured later

    @property
    def ready(self) -> bool:
        """Whether nobody has to wait."""
        return self._sums.ready

    @property
    def accuracy(self) -> float:
        """The leading metric."""
        return self.values[0]

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.values[-1]

    @cached_property
    def values(self) -> list[float]:
        """The metrics in the task's order, then the loss."""
        rest = list(self._sums.values)
        values, counts = list[float](), list[int]()
        for metric, width in zip(self._metrics, self._widths, strict=True):
            sums, (count, *rest) = rest[:width], rest[width:]
            counts.append(int(count))
            values.append(metric.pooled(sums, counts[-1]))
        return [*values, mean(rest, counts[0])]


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Send the work of the block to the stream. PyTorch's own no-op for none would look for a device, and wake it."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


class Evaluator:
    """Evaluates flat models of one task; owns a module of its own.

    On a GPU it works on a stream of its own, beside what the caller does meanwhile: a few tasks in flight leave much of
    a large GPU idle.
    """

    def __init__(
        self,
        task: Task,
        layout: Layout,
        *,
        batch: int | None = None,
        seed: int = 0,
        norm: Norm = "rebuilt",
        validation: Samples | None = None,
        execution: ExecutionSettings | None = None,
    ) -> None:
        """Evaluate with at most `batch` samples in one forward pass, None: as the task says.

        `seed` is the run's, so that what the layout leaves out (frozen parameters) is as in training. Statistics are
        rebuilt from the inputs of `validation`; without any the statistics that come with a model are used.
        """
        device = task.test.device
        self.task, self.layout, self.execution = task, layout, execution or ExecutionSettings()
        self.validation = validation
        on_gpu = device.type == "cuda"
        self.module = task.initial_model(seed).to(device).eval()
        self._computed_by = self.module  # has its layers
        if on_gpu and TRITON and layout.dtype == torch.float32:  # the kernels compute in float32
            self._computed_by = fuse(self.module)
        fused = self._computed_by is not self.module
        self._channels_last = fused or (on_gpu and lies_channels_last(layout))
        if not fused and (chain := Chain.of(self.module)) is not None:
            chain.arrange()
        self.flat = torch.zeros(layout.size, dtype=layout.dtype, device=device)
        self.buffers = torch.zeros(layout.buffer_size, dtype=layout.dtype, device=device)
        layout.bind(self.module, self.flat, self.buffers)
        precision = "tf32" if self.execution.tf32 else "ieee"
        self._head = Head.of(task, self.module, precision=precision) if on_gpu else None
        times = _ON_CUDA * (1 if self._head is None else _UNWRITTEN)
        self.batch = batch or task.evaluation_batch * (times if on_gpu else 1)
        self._norms = BatchNorms(self.module)
        self._norm: Norm = "running" if norm == "rebuilt" and validation is None else norm
        self._programs: dict[str, Callable[[], Sums]] = {}
        self._lazy = task.test.lazy or (validation is not None and validation.lazy)  # a graph would not read again
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def test(self, model: Tensor, buffers: Tensor) -> Measurement:
        """Start to measure on the test set; the caller keeps the model unchanged, but need not keep it."""
        return self._measure("test", model, buffers)

    def validate(self, model: Tensor, buffers: Tensor) -> Measurement:
        """Start to measure on the validation set."""
        return self._measure("validation", model, buffers)

    @torch.no_grad()
    def on(self, parts: Sequence[Samples], model: Tensor, buffers: Tensor) -> list[Measurement]:
        """Start to measure one model on several sets of samples, such as each client's own."""
        self._await(model, buffers)
        with _on(self._stream):
            self._load(model, buffers)
            if self._norms.layers and self._norm == "rebuilt":
                self._build_statistics()
            by_batch = self._norm == "batch"
            # Batch statistics of a single sample do not exist.
            sums = [self._summed(samples, by_batch=by_batch and len(samples) > 1) for samples in parts]
            return [Measurement(self.task.metrics, each) for each in sums]

    def state(self, model: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's complete state with this model in it, frozen parameters included.

        Its batch-norm statistics are those it is tested with; for batch statistics, which no file can hold, rebuilt.
        """
        if self._stream is not None:
            self._stream.synchronize()
        self._load(model, buffers)
        if self._norms.layers and self._norm != "running" and self.validation is not None:
            self._build_statistics()
        return {name: tensor.clone() for name, tensor in self.module.state_dict().items()}

    def _measure(self, part: str, model: Tensor, buffers: Tensor) -> Measurement:
        if part not in self._programs:
            compute = partial(self._computed, part)
            self._programs[part] = compute if self._lazy else Replayed(compute, self._stream)
        self._await(model, buffers)
        with _on(self._stream):
            self._load(model, buffers)
            return Measurement(self.task.metrics, self._programs[part]())

    def _await(self, *tensors: Tensor) -> None:
        """Let the stream wait for tensors that others may still be making, and these live until it has read them."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.flat.device))
            for tensor in tensors:
                if tensor.device.type == "cuda":
                    tensor.record_stream(self._stream)

    @torch.no_grad()
    def _build_statistics(self) -> None:
        """Batch-norm statistics from one pass over the validation inputs."""
        assert self.validation is not None
        parts = self.validation.split(math.ceil(len(self.validation) / self.batch))
        with self._norms.batch_statistics(rebuild=True) as begin:
            for number, (inputs, _) in enumerate(parts):
                begin(number)
                self._outputs(inputs)

    @torch.no_grad()
    def _computed(self, part: str) -> Sums:
        """Sum metrics and losses of the loaded model on the test or the validation set, and count."""
        samples = self.task.test if part == "test" else self.validation
        assert samples is not None
        # On the very samples that statistics would be rebuilt from, one pass with batch statistics does.
        by_batch = self._norm == "batch" or (self._norm == "rebuilt" and part == "validation")
        if self._norms.layers and self._norm == "rebuilt" and not by_batch:
            self._build_statistics()
        return self._summed(samples, by_batch=by_batch)

    def _summed(self, samples: Samples, *, by_batch: bool) -> Sums:
        """The same on these samples, with batch statistics or with those that the module has."""
        metrics = self.task.metrics
        sums = [self._zero() for _ in range(len(metrics) + 1)]
        counts: list[Count] = [0] * len(metrics)
        with self._norms.batch_statistics() if by_batch else nullcontext():
            # Equal batches rather than a short last one: batch statistics of a single sample do not exist.
            for inputs, targets in samples.split(math.ceil(len(samples) / self.batch)):
                measured, loss = self._measured(inputs, targets)
                for place, (total, number) in enumerate(measured):
                    sums[place] = sums[place] + torch.as_tensor(total, device=self.flat.device).reshape(-1)
                    counts[place] = counts[place] + number
                sums[-1] = sums[-1] + summed(loss, measured[0][1])
        pairs = [(total, self._zero() + count) for total, count in zip(sums, counts, strict=False)]
        return torch.cat([*(each for pair in pairs for each in pair), sums[-1]]), tuple(map(len, sums[:-1]))

    def _measured(self, inputs: Inputs, targets: Tensor) -> tuple[list[tuple[Tensor, Count]], Tensor]:
        """What each metric sums and counts in a batch, and the loss."""
        if self._head is None:
            outputs = self._outputs(inputs)
            return [metric.measure(outputs, targets) for metric in self.task.metrics], self.task.loss(outputs, targets)
        with replaced_forward(self._head.layer, lambda hidden: hidden):
            return self._head.read(self._outputs(inputs), targets)

    def _zero(self) -> Tensor:
        return torch.zeros(1, dtype=torch.float64, device=self.flat.device)

    def _outputs(self, inputs: Inputs) -> Tensor:
        prepared = self.task.inputs(inputs)
        if self._channels_last:
            prepared = channels_last(prepared)
        with self.execution.number_formats(self.flat.device, training=False):
            return outputs_of(self._computed_by, prepared)

    def _load(self, model: Tensor, buffers: Tensor) -> None:
        self.flat.copy_(model)
        # Where statistics are kept per width, those of the whole model come last.
        self.buffers.copy_(buffers[len(buffers) - len(self.buffers) :])
