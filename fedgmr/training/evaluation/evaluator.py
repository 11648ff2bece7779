"""Evaluation of flat models: loss and metric on the test set, metric on the server's validation set.

Validation of a sub-model uses batch statistics where the model has batch norm: the running statistics of the full
model do not fit a small sub-model (A2).
"""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch
from torch import Tensor

from fedgmr.submodels.layout import Layout, lies_channels_last
from fedgmr.tasks.task import Samples, Task
from fedgmr.training.chains import Chain
from fedgmr.training.evaluation.replayed import Replayed, Sums
from fedgmr.training.evaluation.statistics import BatchNorms
from fedgmr.training.execution import ExecutionSettings
from fedgmr.training.rules import Norm

_ON_CUDA = 4  # times the task's evaluation batch: fewer and larger kernels


class Measurement:
    """Metric (0..1 for accuracies) and mean loss, both over what the metric counts: samples, or tokens.

    A GPU may still be computing them; whoever asks for one waits.
    """

    def __init__(self, sums: Tensor, count: int, stream: torch.cuda.Stream | None) -> None:
        """`sums`: hits and loss of everything counted; they are made on `stream`, None: the current one."""
        self._sums, self._count, self._stream = sums, max(1, count), stream

    @property
    def ready(self) -> bool:
        """Whether nobody has to wait."""
        return self._stream is None or self._stream.query()

    @property
    def accuracy(self) -> float:
        """The metric."""
        return self._means[0]

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self._means[1]

    @cached_property
    def _means(self) -> tuple[float, float]:
        with _on(self._stream):  # other work on the device goes on
            hits, loss = self._sums.tolist()
        return hits / self._count, loss / self._count


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Send the work of the block to the stream, None: to the current one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


class Evaluator:
    """Evaluates flat models of one task; owns a module of its own.

    On a GPU the test set is measured on a stream of its own, beside what the caller does meanwhile: a few tasks in
    flight leave much of a large GPU idle.
    """

    def __init__(
        self,
        task: Task,
        layout: Layout,
        *,
        batch: int | None = None,
        seed: int = 0,
        norm: Norm = "running",
        calibration: Tensor | None = None,
        execution: ExecutionSettings | None = None,
    ) -> None:
        """Evaluate with at most `batch` samples in one forward pass, None: as the task says.

        `seed` is the run's, so that what the layout leaves out (frozen parameters) is as in training. Static batch norm
        builds its statistics from the inputs `calibration`; without any it uses batch statistics.
        """
        device = task.test[0].device
        self.task, self.layout, self.execution = task, layout, execution or ExecutionSettings()
        self.batch = batch or task.evaluation_batch * (_ON_CUDA if device.type == "cuda" else 1)
        self._channels_last = device.type == "cuda" and lies_channels_last(layout)
        self.module = task.initial_model(seed).to(device).eval()
        if (chain := Chain.of(self.module)) is not None:
            chain.arrange()
        self.flat = torch.zeros(layout.size, dtype=layout.dtype, device=device)
        self.buffers = torch.zeros(layout.buffer_size, dtype=layout.dtype, device=device)
        layout.bind(self.module, self.flat, self.buffers)
        self._norms = BatchNorms(self.module)
        self._norm: Norm = "batch" if norm == "static" and calibration is None else norm
        self._calibration = calibration
        self._programs: dict[tuple[str, int, int], Replayed] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def test(self, model: Tensor, buffers: Tensor) -> Measurement:
        """Start to measure on the test set; the model may change as soon as this returns."""
        self._load(model, buffers)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.flat.device))
        with _on(self._stream):
            if self._norms.layers and self._norm == "static":
                self._build_statistics()
            with self._norms.batch_statistics() if self._norm == "batch" else nullcontext():
                return Measurement(*self._sums(self.task.test, "test"), self._stream)

    def state(self, model: Tensor, buffers: Tensor) -> dict[str, Tensor]:
        """The module's complete state with this model in it, frozen parameters included."""
        self._load(model, buffers)
        if self._norms.layers and self._norm == "static":
            self._build_statistics()  # those it is tested with; what the server holds was never trained
        return {name: tensor.clone() for name, tensor in self.module.state_dict().items()}

    def validate(self, model: Tensor, buffers: Tensor, samples: Samples) -> float:
        """Metric on `samples`, with batch statistics in batch-norm layers."""
        self._load(model, buffers)
        with self._norms.batch_statistics():
            return Measurement(*self._sums(samples, "validation"), None).accuracy

    @torch.no_grad()
    def _build_statistics(self) -> None:
        """Batch-norm statistics from one pass over the calibration inputs (HeteroFL's static batch norm)."""
        assert self._calibration is not None
        with self._norms.rebuilding():
            for inputs in torch.tensor_split(self._calibration, math.ceil(len(self._calibration) / self.batch)):
                self._outputs(inputs)

    def _sums(self, samples: Samples, name: str) -> Sums:
        """Sum hits and losses of the loaded model, and count; one `name` stands for one way of normalising."""
        key = (name, samples[0].data_ptr(), len(samples[0]))
        if key not in self._programs:
            self._programs[key] = Replayed(lambda: self._computed(samples), self.flat.device)
        return self._programs[key]()

    @torch.no_grad()
    def _computed(self, samples: Samples) -> Sums:
        sums = torch.zeros(2, dtype=torch.float64, device=self.flat.device)
        count = 0
        # Equal batches rather than a short last one: batch statistics of a single sample do not exist.
        batches = math.ceil(len(samples[0]) / self.batch)
        for inputs, targets in zip(*(torch.tensor_split(part, batches) for part in samples), strict=True):
            outputs = self._outputs(inputs)
            good, number = self.task.metrics[0].measure(outputs, targets)
            sums[0] += good
            sums[1] += self.task.loss(outputs, targets) * number
            count += number
        return sums, count

    def _outputs(self, inputs: Tensor) -> Tensor:
        prepared = self.task.inputs(inputs)
        if self._channels_last and prepared.dim() == 4:
            prepared = prepared.contiguous(memory_format=torch.channels_last)
        with self.execution.number_formats(prepared.device, training=False):
            outputs: Tensor = self.module(prepared)
        return outputs

    def _load(self, model: Tensor, buffers: Tensor) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self.flat.device).wait_stream(self._stream)  # it still reads what is there
        self.flat.copy_(model)
        # Where statistics are kept per width, those of the whole model come last.
        self.buffers.copy_(buffers[len(buffers) - len(self.buffers) :])
