"""Data that stays on disk: 100,000 samples in a memory-mapped file of 400 MB, read mini-batch by mini-batch.

Run it with `python examples/lazy_dataset.py`; it takes some seconds. A thread reads the next mini-batches while one is
trained on. The result is that of the same data in memory, bit for bit; only the memory differs, which is printed.
"""

import resource
import tempfile
from pathlib import Path

import numpy as np
from torch import nn
from torch.utils.data import Dataset

import fedgmr

SAMPLES, NUMBERS, CLASSES = 100_000, 1024, 10


def write_samples(path: Path) -> None:
    """Noise, and in it a hundred numbers that are higher than the others: which ones depends on the class."""
    noise = np.random.default_rng(0).standard_normal((1000, NUMBERS), dtype=np.float32)
    higher = np.zeros((CLASSES, NUMBERS), dtype=np.float32)
    for label in range(CLASSES):
        higher[label, label * 100 : (label + 1) * 100] = 0.4
    with path.open("wb") as file:
        for block in range(SAMPLES // 1000):
            rows = np.roll(noise, 7 * block, axis=1) + higher[np.arange(1000) % CLASSES]
            file.write(rows.tobytes())


class OnDisk(Dataset[tuple[np.ndarray, int]]):
    """The samples of a file from `first` to `end`."""

    def __init__(self, path: Path, first: int, end: int) -> None:
        self.path, self.first = path, first
        self.targets = np.arange(first, end) % CLASSES  # so nobody has to read the file for them

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
        # Mapped anew each time, or every page that was ever read would count as this program's memory.
        mapped = np.memmap(self.path, np.float32, mode="r", shape=(SAMPLES, NUMBERS))
        return np.array(mapped[self.first + at]), int(self.targets[at])


def most_memory() -> float:
    """The most memory that this program has had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Simulate ten clients whose data is in one file, and print how much memory that took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.bin"
        write_samples(path)
        task = fedgmr.Task(
            name="on_disk",
            model=lambda: nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
            train=OnDisk(path, 0, SAMPLES - 1000),
            test=OnDisk(path, SAMPLES - 1000, SAMPLES),
            holdout=500,
            lazy=True,
        )
        before = most_memory()
        result = fedgmr.simulate(
            task,
            fleet=fedgmr.FleetSettings(name="high", scale="model"),
            seconds=200,
            partition={"kind": "dirichlet", "alpha": 0.5},
            evaluation={"views": "merged"},
            progress=False,
        )
        print(f"data on disk    {path.stat().st_size / 2**20:6.0f} MB")
    print(f"memory at first {before:6.0f} MB")
    print(f"memory at most  {most_memory():6.0f} MB")
    print(f"accuracy        {result.history[-1]['accuracy']:6.3f}")


if __name__ == "__main__":
    main()
