"""Recipes whose runs take a fraction of a second and still see everything: restoration, new maps, staleness."""

from typing import Any

_LINKS = [
    {"down": 20, "up": 5, "density": 1.0},
    {"down": 10, "up": 2.5, "density": 0.5},
    {"down": 4, "up": 1, "density": 0.2},
    {"down": 2, "up": 0.5, "density": 0.1},
    {"down": 1, "up": 0.25, "density": 0.05},
]
FLEET = {"name": "custom", "links": _LINKS, "scale": 1e-4}


def recipe(task: str = "dense", method: str = "fedgmr", **sections: Any) -> dict[str, Any]:
    """A recipe of five clients; FedGMR at a pace that suits a short run."""
    brisk = {"interval": 3, "restoration": {"patience": 1}}
    return {
        "name": "small",
        "seconds": 600.0,
        "seed": 3,
        "task": f"e2e.tiny:{task}",
        "method": method,
        "methods": {"fedgmr": brisk},
        "fleet": FLEET,
        "training": {"learning_rate": 0.1, "batch_size": 10, "steps": 2},
        "evaluation": {"every_seconds": 40.0},
        "checkpoint": {"every": 2},
        **sections,
    }


def cohort() -> dict[str, Any]:
    """Rounds of three of five clients who validate themselves, one away for a while, deltas averaged."""
    absences = [{"clients": [0, 2], "start": 50.0, "end": 200.0}]
    method = {"name": "fedgmr", "coordination": "synchronous", "aggregation": "gradient_average"}
    return recipe(
        "dense",
        method,  # type: ignore[arg-type]
        fleet={**FLEET, "absences": absences},
        participation={"count": 3},
        checkpoint={"every": 2, "keep": 100},
        evaluation={"every_seconds": 40.0, "validation": "clients"},
        partition={"kind": "dirichlet", "alpha": 1.0, "min_samples": 10},
    )


def _queueing() -> dict[str, Any]:
    """FedAsync behind an uplink that is always busy."""
    network, checkpoint = {"server_rate": 2.0}, {"every": 3, "keep": 100}
    return recipe("normed", "fedasync", seconds=400.0, network=network, checkpoint=checkpoint)


RECIPES = {
    "fedgmr": recipe("dropped", "fedgmr"),  # semi-asynchronous, batch norm, dropout
    "fedasync": _queueing(),
    "cohort": cohort(),
}
