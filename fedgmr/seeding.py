"""Named random generators: every draw belongs to (seed, purpose, keys...), never to an execution order.

Two draws with the same name are equal on any machine, in any batch, before or after a resume.
"""

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_TURN = threading.RLock()  # PyTorch has one generator for all threads, and each may be at a run of its own


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator named by `seed`, `purpose` and integer `keys` (client, tick, ...)."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, keys)))


def derived_seed(seed: int, purpose: str, *keys: int) -> int:
    """A 63-bit seed under the same naming, for `torch.manual_seed`."""
    return int(_sequence(seed, purpose, keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def borrowed_generator(*devices: torch.device) -> Iterator[None]:
    """PyTorch's own generator for this block alone, to be seeded and drawn from; then it is as it was before.

    So are those of GPUs among `devices`.
    """
    with _TURN, torch.random.fork_rng(devices=devices):
        yield


def _sequence(seed: int, purpose: str, keys: tuple[int, ...]) -> np.random.SeedSequence:
    words = [seed, zlib.crc32(purpose.encode()), *keys]
    # NumPy takes a list number by number; an array of words is the same sequence in half the time.
    short = all(0 <= word < 1 << 32 for word in words)
    return np.random.SeedSequence(np.array(words, np.uint32) if short else words)
