"""The choice of the executor for a run's tasks and of the cut of sub-models, by values: model, method, device.

`auto` takes the fastest executor that can train this model with this method here. On a GPU that is `stacked`, then
`graphed`, then `sequential`. On a CPU it is `threaded` where the operations of a step are too small for several
threads, else `sequential`. Only this file knows all executors. Read next: `executor.py`, the protocol.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from fedgmr.seeding import borrowed_generator
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.inputs import Inputs
from fedgmr.submodels.layout import Layout, lies_channels_last
from fedgmr.submodels.levels import Ladder
from fedgmr.submodels.widths import WidthRule, widths_for
from fedgmr.training.execution import TRITON, ExecutionSettings
from fedgmr.training.executor import Executor
from fedgmr.training.folded.narrow import SmallModules
from fedgmr.training.folded.net import FoldedNet
from fedgmr.training.graphed.executor import GraphedExecutor
from fedgmr.training.graphed.fused import fuse
from fedgmr.training.graphed.memory import StaticWorkspace
from fedgmr.training.plain.dropout import OwnDropout
from fedgmr.training.plain.sequential import SequentialExecutor
from fedgmr.training.plain.threaded import ThreadedExecutor
from fedgmr.training.schedules import TrainingSettings
from fedgmr.training.sparse.break_even import ASSUMED, LayerWork
from fedgmr.training.sparse.cut import SparseCutter
from fedgmr.training.stacked.executor import MOST, StackedExecutor
from fedgmr.training.stacked.net import StackedNet
from fedgmr.training.stacked.rows import Rows
from fedgmr.training.submodel.cut import Cutter, MaskedCutter
from fedgmr.training.submodel.flat_module import FlatModule
from fedgmr.training.submodel.sliced_cut import Prepare, SlicedCutter, scales
from fedgmr.training.submodel.workspace import Workspace
from fedgmr.training.work import LocalWork

# Multiplications of a mini-batch's forward pass up to which threads gain by training a client each, as measured: 1.8e7
# (the quickstart's net) gain 1.3 times with 2 threads and 1.9 with 8, 3.4e8 (Conv-2) 1.1 and 1.2 to 1.7. Nothing larger
# was measured.
_SMALL = 4e8


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalTraining:
    """Everything that the executors of a run are made of."""

    work: LocalWork  # its data is on the run's device
    settings: TrainingSettings
    layout: Layout
    plan: ChannelPlan | None  # the model's channels; needed where sub-models are by width
    ladder: Ladder  # the densities that the method really uses
    by_width: bool  # sub-models are narrower networks, trained physically small
    widths: WidthRule  # how a density becomes a width, where they are
    rolling: bool  # which channels they have changes from map to map

    def chosen(self) -> tuple[ExecutionSettings, Executor]:
        """The executor that the settings name, and the settings with everything `auto` written out."""
        wanted, net = self.work.execution.executor, None
        if wanted == "auto" and self.work.device.type == "cuda":
            net = self._net()
            wanted = self._on_gpu() if net is None else "stacked"
        elif wanted == "auto":
            wanted = self._on_cpu()
        threads = torch.get_num_threads() if self.work.device.type == "cpu" else self.work.execution.threads
        execution = replace(self.work.execution, executor=wanted, sparse=self._sparse_density(), threads=threads)
        settled = replace(self, work=replace(self.work, execution=execution))
        if wanted == "sequential":
            return execution, settled.sequential(natural=True)
        if wanted == "threaded":
            return execution, settled.threaded()
        return execution, settled.graphed() if wanted == "graphed" else settled.stacked(net)

    def sequential(self, *, natural: bool = False, draws: torch.Generator | None = None) -> SequentialExecutor:
        """One task after the other; `natural`: whole models are handed over in natural order."""
        return SequentialExecutor(self.work, self.workspace(draws), natural=natural, draws=draws)

    def threaded(self) -> ThreadedExecutor:
        """A task per thread of a CPU."""
        if self.work.device.type != "cpu":
            raise ValueError(
                f"execution.executor is threaded, which is for a CPU (here: {self.work.device.type}): "
                "set execution.executor to graphed or auto."
            )
        return ThreadedExecutor(lambda: self.sequential(natural=True, draws=torch.Generator()), torch.get_num_threads())

    def graphed(self) -> GraphedExecutor:
        """Tasks side by side in CUDA graphs."""
        capturable = self.work.single and self.work.rule.capturable(self.settings.optimizer)
        if self.work.device.type != "cuda" or not capturable:
            raise ValueError(
                f"execution.executor is graphed, which needs a CUDA device (here: {self.work.device.type}), inputs "
                "that are one tensor in memory, and for ordered dropout SGD without distillation: set "
                "execution.executor to sequential or auto."
            )
        return GraphedExecutor(self.work, self.static_workspace, slots=self.work.execution.slots)

    def stacked(self, net: Rows | None = None) -> StackedExecutor:
        """Tasks side by side in the same kernels; `net` is the run's, if it is made already."""
        net = net or self._net()
        if net is None:
            raise ValueError(
                "execution.executor is stacked, which needs a CUDA device, Triton, inputs that are one tensor in "
                "memory, a net of ordinary layers in float32 (docs/performance.md), and SGD or Adam: set "
                "execution.executor to graphed or auto."
            )
        return StackedExecutor(self.work, net, keeps=self.settings.optimizer.memory == "kept")

    def workspace(self, draws: torch.Generator | None = None) -> Workspace:
        """A workspace for the plain loop; on a CPU dropout draws from `draws`, None: PyTorch's own generator."""
        model, optimizer = self._model(), self.settings.optimizer
        if self.work.device.type == "cpu":
            OwnDropout.install(model, torch.default_generator if draws is None else draws)
        if self.by_width:
            return Workspace(self._sliced(model), optimizer)
        if self.work.device.type != "cpu":
            return Workspace(MaskedCutter(FlatModule(model, self.layout, self.work.device)), optimizer)
        density = ASSUMED if self.work.execution.sparse == "auto" else self.work.execution.sparse
        cutter = SparseCutter(model, self.layout, density=density, smallest=self.work.execution.sparse_from)
        return Workspace(cutter, optimizer)

    def static_workspace(self) -> StaticWorkspace:
        """A workspace whose memory stays where it is."""
        model, optimizer = self._model(), self.settings.optimizer
        sgd = optimizer.memory != "own"  # Adam's runs keep the bits that they have had
        fused = TRITON and sgd and self.layout.dtype == torch.float32  # the kernels compute in float32
        spatial = any(len(place.shape) == 4 for place in self.layout.parameters)
        lying = sgd and spatial and (fused or lies_channels_last(self.layout))
        prepare = fuse if fused else None
        cutter: Cutter
        if self.by_width:
            cutter = self._sliced(model, channels_last=lying, prepare=prepare)
        else:
            prepared = model if prepare is None else prepare(model)
            cutter = MaskedCutter(FlatModule(prepared, self.layout, self.work.device, channels_last=lying))
        return StaticWorkspace(cutter, optimizer, needs_mask=self.work.rule.needs_mask, fused=fused)

    def _model(self) -> nn.Module:
        return self.work.task.initial_model(self.work.seed)

    def _batch(self) -> Inputs:
        return self.work.task.example(self.settings.batch_size)

    def _sliced(self, model: nn.Module, *, channels_last: bool = False, prepare: Prepare | None = None) -> SlicedCutter:
        frozen = any(not parameter.requires_grad for parameter in model.parameters())
        if self.rolling and (frozen or self._tracks):
            raise ValueError(
                "method.ranking is rolling_window and the model has frozen parameters or running statistics, which "
                "do not roll: use width_prefix, or local: {kind: width_sgd, norm: batch}."
            )
        assert self.plan is not None
        return SlicedCutter(
            model,
            self.layout,
            self.plan,
            self.ladder,
            self.work.device,
            widths=self.widths,
            scaler=self.work.rule.scaler,
            per_width=self.work.rule.per_width,
            channels_last=channels_last,
            prepare=prepare,
        )

    def _on_gpu(self) -> Literal["sequential", "graphed"]:
        work = self.work
        possible = work.single and work.rule.capturable(self.settings.optimizer)
        return "graphed" if possible and GraphedExecutor.can_capture(work, self._model()) else "sequential"

    def _net(self) -> Rows | None:
        """The model as a stack of clients: as a chain, or else folded; None where it is neither."""
        work, optimizer, most = self.work, self.settings.optimizer, self.work.execution.slots or MOST
        if not work.single or work.device.type != "cuda":
            return None
        chain = StackedNet.of(work, self._model(), self.layout, optimizer, most=most)
        if chain is not None:
            return chain
        return FoldedNet.of(work, self._model(), self.layout, optimizer, most=most, small=self.small())

    @property
    def _tracks(self) -> bool:
        """Whether there are running statistics, and clients move them."""
        return bool(self.layout.buffers) and self.work.rule.tracks_statistics

    def small(self) -> SmallModules | None:
        """The narrow networks of the model, where sub-models are such and have its running statistics."""
        if not self.by_width:
            return None
        assert self.plan is not None
        widths = widths_for(self.plan, self.layout, self.ladder, self.widths)
        scaled = scales(self._model(), self.work.rule.scaler)
        if self._tracks and (self.rolling or scaled):  # of other channels, or of values divided by the width
            return None
        return SmallModules(plan=self.plan, widths=widths, scaled=scaled)

    def _on_cpu(self) -> Literal["sequential", "threaded"]:
        if torch.get_num_threads() == 1:
            return "sequential"
        model = OwnDropout.install(self._model(), torch.Generator()).train()
        with borrowed_generator():
            before = torch.default_generator.get_state()
            products = sum(work.products for work in LayerWork.observe(model, self._batch()).values())
            draws = not torch.equal(torch.default_generator.get_state(), before)
        return "threaded" if products <= _SMALL and not draws else "sequential"

    def _sparse_density(self) -> float:
        """The density up to which large linear layers are sparse; for `auto` the break-even point on this machine."""
        execution = self.work.execution
        if execution.sparse != "auto":
            return execution.sparse
        if self.work.device.type != "cpu" or self.by_width or min(self.ladder) == 1 or execution.autocast != "none":
            return 0.0
        model = self._model().eval()
        large = SparseCutter.large_layers(model, self.layout, execution.sparse_from)
        if not large:
            return 0.0
        with borrowed_generator():  # the layer that is timed is drawn, too
            found = LayerWork.observe(model, self._batch())
            works = [found[layer] for layer in large.values() if layer in found]
            largest = max(works, key=lambda work: work.products, default=None)
            return 0.0 if largest is None else largest.break_even(steps=self.settings.steps, dtype=self.layout.dtype)
