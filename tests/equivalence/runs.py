"""Runs taken apart: the objects of a small run, and the loop driven tick by tick with all that can be compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgmr import Link, Task
from fedgmr.experiments.assembly import Assembly, assemble, resolve
from fedgmr.federation import federate
from fedgmr.recipe import recipe_from

# Five clients whose links differ by a factor of twenty; a full model of the tiny tasks takes seconds on them.
LINKS = (
    Link(down=20, up=5, density=1.0),
    Link(down=10, up=2.5, density=0.5),
    Link(down=4, up=1, density=0.2),
    Link(down=2, up=0.5, density=0.1),
    Link(down=1, up=0.25, density=0.05),
)
SCALE = 1e-4
# FedGMR at a pace at which a short run sees every part of it.
BRISK = {"interval": 3, "restoration": {"patience": 1}}


def objects(
    task: Task,
    method: str = "fedgmr",
    rules: dict[str, Any] | None = None,
    *,
    links: Sequence[Link] = LINKS,
    seconds: float = 3000.0,
    seed: int = 0,
    absences: Sequence[dict[str, Any]] = (),
    **sections: Any,
) -> Assembly:
    """The objects of a run of `method` with its `rules` overridden; `sections` are sections of the recipe."""
    data = {
        "seconds": seconds,
        "seed": seed,
        "task": task.name,
        "method": {"name": method, **(rules or {})},
        "fleet": {"name": "custom", "links": list(links), "scale": SCALE, "absences": list(absences)},
        "training": {"learning_rate": 0.1, "batch_size": 10, "steps": 3},
        "device": "cpu",
        **sections,
    }
    return assemble(resolve(recipe_from(data), task), task)


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """What there is to compare after one pass through the loop."""

    tick: int
    model: Tensor
    buffers: Tensor
    score: tuple[float, float]
    levels: tuple[int, ...]
    staleness: tuple[int | None, ...]
    updates: tuple[int, ...]
    seconds: float
    traffic: tuple[int, ...]

    def learned(self) -> tuple[Any, ...]:
        """Everything but times and bytes."""
        state = (bits(self.model), bits(self.buffers), self.score, self.levels, self.staleness, self.updates)
        return (self.tick, *state)

    def whole(self) -> tuple[Any, ...]:
        """Everything."""
        return (*self.learned(), self.seconds, self.traffic)


def drive(run: Assembly, *, ticks: int | None = None, watch: Callable[[], None] = lambda: None) -> list[Moment]:
    """Let the run go for its time budget, or for so many ticks; `watch` is called after every pass."""
    moments: list[Moment] = []
    server, fleet = run.server, run.fleet

    def after_tick() -> None:
        score = run.evaluator.test(server.model, server.buffers)
        moments.append(
            Moment(
                tick=server.tick,
                model=server.model.clone(),
                buffers=server.buffers.clone(),
                score=(score.accuracy, score.loss),
                levels=tuple(server.client_levels),
                staleness=tuple(server.staleness),
                updates=tuple(server.updates),
                seconds=fleet.now,
                traffic=(*fleet.bytes_down, *fleet.bytes_up, fleet.bytes_server),
            )
        )
        watch()

    def stop() -> bool:
        return ticks is not None and server.tick >= ticks

    federate(server, fleet, seconds=run.recipe.seconds, after_tick=after_tick, stop=stop)
    assert ticks is None or server.tick >= ticks, f"the budget ended after {server.tick} of {ticks} ticks"
    return moments


def bits(tensor: Tensor) -> bytes:
    """The very bits, so that -0.0 differs from 0.0."""
    return tensor.detach().contiguous().numpy().tobytes()


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit."""
    return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)


def distance(one: Tensor, other: Tensor) -> float:
    """Relative distance in the Euclidean norm."""
    return float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other))
