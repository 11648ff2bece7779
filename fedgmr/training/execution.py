"""The computation of tasks: the executor, and the number formats.

The executor never changes a result by more than rounding. `tf32` and `autocast` do, so they are part of what makes two
runs the same. The resolved recipe says which executor and which formats were used, so that a resumed or repeated run
computes the same way. Read next: `choice.py`, what `auto` means.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

import torch

# CPU builds of PyTorch come without it, and a folder of that name is not it.
TRITON = find_spec("triton") is not None and find_spec("triton.language") is not None


@dataclass(frozen=True, kw_only=True)
class ExecutionSettings:
    """The recipe's section on how tasks are computed."""

    executor: Literal["auto", "sequential", "threaded", "graphed", "stacked"] = field(
        default="auto",
        metadata={
            "help": (
                "`sequential`: one task after the other; `threaded`: on a CPU one task per thread, which pays for "
                "small batches; `graphed`: tasks side by side on a GPU, in captured CUDA graphs; `stacked`: on a "
                "GPU all tasks in the same kernels, for [nets of ordinary layers](performance.md#nets-that-can-be-"
                "stacked); `auto`: on a GPU `stacked` if it can train the model, else `graphed`, else "
                "`sequential`, also for [lazy data and several inputs](own-data.md); on a CPU `threaded` for "
                "small nets and batches, else `sequential`; the resolved recipe says which"
            )
        },
    )
    slots: int | None = field(
        default=None,
        metadata={
            "at_least": 1,
            "help": (
                "graphed, stacked: number of tasks trained at once; `null`: as many as arrive together and fit "
                "the memory (stacked: at most 32)"
            ),
        },
    )
    tf32: bool = field(
        default=True,
        metadata={
            "help": (
                "CUDA: products of float32 numbers in TF32, those of a last layer of many classes in half precision, "
                "which has as many digits"
            )
        },
    )
    autocast: Literal["none", "bfloat16"] = field(
        default="none", metadata={"help": "`bfloat16`: forward and backward pass in bfloat16; weights stay as they are"}
    )
    sparse: Literal["auto"] | float = field(
        default="auto",
        metadata={
            "at_least": 0,
            "at_most": 1,
            "help": (
                "CPU, unstructured sub-models: a large linear layer that keeps at most this share of its weights "
                "holds and computes only these; `0`: never; `auto`: a short measurement decides, if a layer is "
                "large enough; a Flower client does not measure and takes 0.12"
            ),
        },
    )
    sparse_from: int = field(
        default=1_000_000, metadata={"at_least": 1, "help": "number of weights from which a linear layer is large"}
    )

    threads: int | None = field(
        default=None,
        metadata={
            "at_least": 1,
            "help": (
                "CPU: number of threads of an operation, or with `threaded` of tasks; `null`: as many as PyTorch "
                "takes (`OMP_NUM_THREADS`). The resolved recipe has the number, and a resume takes the same, "
                "because sums are rounded by it; it is not part of a run's key"
            ),
        },
    )

    @contextmanager
    def own_modes(self) -> Iterator[None]:
        """Compute with gradients and this number of threads within the block, whatever the caller has switched off.

        The number of threads is a setting of the whole process.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            with torch.inference_mode(False), torch.enable_grad():
                yield
        finally:
            torch.set_num_threads(before)

    @contextmanager
    def number_formats(self, device: torch.device, *, training: bool) -> Iterator[None]:
        """Use these formats, and algorithms that give the same bits every time, within the block.

        In PyTorch these are settings of the whole process; they are put back at the end. Autocast is for training:
        models are evaluated in their own type.
        """
        reduced = training and self.autocast == "bfloat16"
        casting = torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if reduced else nullcontext()
        if device.type != "cuda":
            with casting:
                yield
            return
        cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
        before = (cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark)
        efficient = cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        cuda.matmul.allow_tf32 = cudnn.allow_tf32 = self.tf32
        cudnn.deterministic, cudnn.benchmark = True, False
        cuda.enable_mem_efficient_sdp(False)  # its backward pass adds in any order
        try:
            with casting:
                yield
        finally:
            cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
            cuda.enable_mem_efficient_sdp(efficient)
