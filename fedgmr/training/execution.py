"""Execution in a recipe: how tasks are computed. Only the number formats `tf32` and `autocast` change results.

`auto` is decided by a short probe when a run starts; the resolved recipe says what was chosen, so that a resumed or
repeated run computes the same way.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ExecutionSettings:
    """How tasks are trained."""

    executor: Literal["auto", "sequential", "threaded", "graphed", "stacked"] = field(
        default="auto",
        metadata={
            "help": "sequential: one task after the other; threaded: on a CPU, one task per thread; graphed: CUDA "
            "graphs on parallel streams; stacked: all tasks in the same Triton kernels, for chains of convolutions and "
            "linear layers under plain SGD; auto: sequential on a CPU, on a GPU a short probe decides"
        },
    )
    slots: int | None = field(
        default=None,
        metadata={
            "at_least": 1,
            "help": "graphed, stacked: tasks trained at once; none: as many as arrive, within limits",
        },
    )
    fused: bool = field(
        default=True,
        metadata={
            "help": "on a GPU, where Triton is installed: the stacked executor, and in graphed Triton kernels for what "
            "follows convolutions and for large linear layers' steps"
        },
    )
    tf32: bool = field(default=True, metadata={"help": "CUDA: products of float32 in TF32"})
    autocast: Literal["none", "bfloat16"] = field(
        default="none", metadata={"help": "precision of the forward and backward pass; weights stay as they are"}
    )
    sparse: Literal["auto"] | float = field(
        default="auto",
        metadata={
            "at_least": 0,
            "at_most": 1,
            "help": "CPU: a large linear layer that keeps at most this share of its weights is computed sparsely; "
            "0: never; auto: a short probe decides",
        },
    )
    sparse_from: int = field(
        default=1_000_000, metadata={"at_least": 1, "help": "weights from which on a linear layer is large"}
    )
