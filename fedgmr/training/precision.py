"""Numbers on the device: TF32 products, bfloat16 autocast, and algorithms that give the same bits every time.

These are settings of the whole process in PyTorch; here they hold for a block and are put back.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedgmr.training.execution import ExecutionSettings


@contextmanager
def precision(settings: ExecutionSettings, device: torch.device) -> Iterator[None]:
    """The recipe's number formats, for training; cuDNN's choices are repeatable."""
    with evaluation_precision(settings, device):
        if settings.autocast == "none":
            yield
        else:
            with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
                yield


@contextmanager
def evaluation_precision(settings: ExecutionSettings, device: torch.device) -> Iterator[None]:
    """The same without autocast: models are measured in their own type."""
    if device.type != "cuda":
        yield
        return
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    before = (cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark)
    efficient = cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
    cuda.matmul.allow_tf32 = cudnn.allow_tf32 = settings.tf32
    cudnn.deterministic, cudnn.benchmark = True, False
    cuda.enable_mem_efficient_sdp(False)  # its backward pass adds in any order
    try:
        yield
    finally:
        cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
        cuda.enable_mem_efficient_sdp(efficient)
