"""The common input of all simulators: model, data, the clients and samples of every round; and the timing.

It needs only torch and numpy, so that each simulator imports it in an interpreter of its own. `plan.py` writes the
directory that `Plan` reads. Read next: `bare.py`, the plain loop.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

LINE = "@@ "  # begins a line for `simulators.py`; everything else on the standard output is noise


class _ChannelsFirst(nn.Module):
    """Images [N, H, W, C] as the convolutions see them; their memory stays channels-last."""

    def forward(self, images: Tensor) -> Tensor:
        return images.permute(0, 3, 1, 2)


def cifar_cnn(dropout: bool) -> list[nn.Module]:
    """The 2-convolution network of pfl-research's CIFAR-10 benchmark, 1,626,442 parameters."""
    return [
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25 if dropout else 0.0),
        nn.Flatten(),
        nn.Linear(14 * 14 * 64, 128),
        nn.ReLU(),
        nn.Dropout(0.5 if dropout else 0.0),
        nn.Linear(128, 10),
    ]


def small_cnn(dropout: bool) -> list[nn.Module]:
    """The network of Flower's PyTorch tutorials (LeNet for colour images), 62,006 parameters; no dropout."""
    return [
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    ]


NETWORKS: dict[str, Callable[[bool], list[nn.Module]]] = {"cifar_cnn": cifar_cnn, "small_cnn": small_cnn}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A workload from files: round r trains `clients[r]`, each on `samples[r, i]` in order."""

    root: Path
    images_at: Path
    network: str
    cohort: int
    batch: int
    steps: int
    rate: float
    users: int
    images_per_user: int
    seed: int  # fedgmr derives everything from it
    data: str  # for people
    dtype: torch.dtype = torch.float32

    @classmethod
    def read(cls, root: Path, dtype: torch.dtype = torch.float32) -> "Plan":
        """The plan in a directory, to be computed in `dtype`."""
        described = json.loads((root / "plan.json").read_text())
        return cls(root=root, images_at=Path(described.pop("images")), dtype=dtype, **described)

    @cached_property
    def clients(self) -> np.ndarray:
        """Int [rounds, cohort]."""
        return np.load(self.root / "clients.npy")

    @cached_property
    def samples(self) -> np.ndarray:
        """Int [rounds, cohort, steps, batch]: indices into the images."""
        return np.load(self.root / "samples.npy")

    @property
    def weights(self) -> np.ndarray:
        """The initial model, flat."""
        return np.load(self.root / "weights.npy")

    def images(self, layout: str, device: str = "cpu") -> Tensor:
        """[samples, ...] in layout chw or hwc; in float32 on a CPU all simulators share the pages of one file."""
        pages = np.load(self.images_at / f"images_{layout}.npy", mmap_mode="c")
        return torch.from_numpy(pages).to(device, self.dtype)

    def labels(self, device: str = "cpu") -> Tensor:
        """Int64 [samples]."""
        return torch.from_numpy(np.load(self.images_at / "labels.npy")).to(device)

    def model(self, layout: str, dropout: bool) -> nn.Sequential:
        """The network with the initial weights."""
        layers = NETWORKS[self.network](dropout)
        model = nn.Sequential(*([_ChannelsFirst()] if layout == "hwc" else []), *layers).to(self.dtype)
        set_flat(model, torch.from_numpy(self.weights))
        return model


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def set_flat(model: nn.Module, values: Tensor) -> None:
    """The inverse of `flat`."""
    sizes = [p.numel() for p in model.parameters()]
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), values.split(sizes), strict=True):
            parameter.copy_(part.view_as(parameter))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The setting of one simulator: the arguments that every script takes."""

    plan: Plan
    gate: Plan  # a small one in float64, run before any clock
    out: Path  # the file for the weights after the gate's rounds
    layout: str
    threads: int
    processes: int
    device: str
    executor: str

    @classmethod
    def parse(cls) -> "Setting":
        """From the command line."""
        parser = argparse.ArgumentParser()
        parser.add_argument("plan", type=Path)
        parser.add_argument("gate", type=Path)
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--layout", choices=["chw", "hwc"], default="chw")
        parser.add_argument("--threads", type=int, default=2)
        parser.add_argument("--processes", type=int, default=1)
        parser.add_argument("--device", default="cpu")
        parser.add_argument("--executor", default="sequential")
        arguments = vars(parser.parse_args())
        torch.set_num_threads(arguments["threads"])
        # CUDA: every simulator is timed in float32 with products in TF32.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        plans = {"plan": Plan.read(arguments["plan"]), "gate": Plan.read(arguments["gate"], torch.float64)}
        return cls(**{**arguments, **plans})

    def passed_gate(self, model: Tensor) -> None:
        """Hand the weights after the gate's rounds over."""
        np.save(self.out, model.cpu().numpy())
        say("gate")


class Stopped(Exception):  # noqa: N818 - the end of the measurement, not an error
    """Raised when a simulator waits for its next turn and there is none."""


class Turns:
    """Rounds in timed turns: `wait` for one, then call `after_round` after each of its rounds."""

    def __init__(self, device: str) -> None:
        self.device, self.left, self.began = device, 0, (0.0, 0.0)

    def wait(self) -> None:
        """Report readiness and wait until `simulators.py` gives the next turn."""
        say("ready")
        words = sys.stdin.readline().split()
        if not words or words[0] != "go":
            raise Stopped
        self.left = int(words[1])
        self.began = time.perf_counter(), time.process_time()

    def after_round(self) -> bool:
        """Count a round; at the end of a turn report its wall and processor seconds, wait for the next, return True."""
        self.left -= 1
        if self.left:
            return False
        if self.device != "cpu":
            torch.cuda.synchronize()
        wall, processor = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
        say(f"took {wall!r} {processor!r}")
        self.wait()
        return True


def say(text: str) -> None:
    """A line for `simulators.py`."""
    print(f"\n{LINE}{text}", flush=True)
