"""Run directories as a run leaves them: small enough to compute by hand, or large enough to look at."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CLIENTS = 10
PRESETS = np.array([1.0, 0.5, 0.2, 0.1] + [0.05] * 6)
LADDER = np.array([0.05, 0.1, 0.2, 0.5, 1.0])
RECIPE = "name: example\ntask: {name: femnist, note: '<b>not bold</b> & http://example.org'}\nseed: 1\n"
# method title -> (final accuracy, time constant in seconds)
METHODS = {
    "FedGMR": (0.827, 420.0),
    "HeteroFL": (0.798, 520.0),
    "FedAsync": (0.810, 700.0),
    "FedAvg": (0.746, 1300.0),
}


def evaluation(seconds: float, accuracy: float, **columns: Any) -> dict[str, Any]:
    """One line of metrics.jsonl for two clients: 1.5 MB down and 0.3 MB up per second, together."""
    whole = int(seconds)
    line: dict[str, Any] = {
        "seconds": seconds,
        "tick": whole // 10,
        "accuracy": accuracy,
        "loss": 1.0 - accuracy,
        "density": [1.0, 0.5],
        "level": [4, 3],
        "staleness": [0, None],
        "updates": [3, 2],
        "bytes_down": [whole * 1_000_000, whole * 500_000],
        "bytes_up": [whole * 200_000, whole * 100_000],
        "bytes_server": whole * 1_200_000,
        "in_flight": 2,
        "wall": seconds / 50,
    }
    return {**line, **columns}


def summary(**fields: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "schema_version": 1,
        "status": "finished",
        "name": "example",
        "method": "fedgmr",
        "method_title": "FedGMR",
        "task": "femnist",
        "task_title": "FEMNIST, non-IID",
        "stand_in": None,
        "short": False,
        "fleet": "high",
        "clients": 2,
        "seed": 1,
        "seconds": 200.0,
        "ticks": 20,
        "final_accuracy": None,
        "final_loss": 0.2,
        "wall_seconds": 4.0,
        "versions": {"fedgmr": "0.1.0", "python": "3.11.9", "torch": "2.7.0"},
        "device": "cpu",
    }
    return {**base, **fields}


def write_run(directory: Path, lines: list[dict[str, Any]], fields: dict[str, Any] | None, *, tail: str = "") -> Path:
    """A run directory; `fields` change the summary, None means there is none; `tail` ends metrics.jsonl."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "recipe.yaml").write_text(RECIPE)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    if fields is not None:
        (directory / "summary.json").write_text(json.dumps(summary(**fields)))
    return directory


def write_curve(directory: Path, points: dict[float, float], **fields: Any) -> Path:
    """A finished run of two clients with these accuracies at these seconds."""
    lines = [evaluation(seconds, accuracy) for seconds, accuracy in points.items()]
    return write_run(directory, lines, {"seconds": max(points), **fields})


def realistic_lines(title: str, seed: int, total: float = 2850.0, count: int = 31) -> list[dict[str, Any]]:
    """Ten clients on five links; FedGMR restores its slow clients, the others keep their density."""
    rng = np.random.default_rng([seed, sum(map(ord, title))])
    final, constant = METHODS[title]
    down, up = np.zeros(CLIENTS), np.zeros(CLIENTS)
    times = np.linspace(0, total, count)
    times[:-1] += 3.0 * seed  # seeds do not evaluate at exactly the same times
    lines = []
    for step, seconds in enumerate(times):
        density = np.ones(CLIENTS) if title in ("FedAsync", "FedAvg") else PRESETS
        if title == "FedGMR":
            restored = int(max(0.0, seconds - 300) // 420)
            density = LADDER[np.minimum(np.searchsorted(LADDER, PRESETS) + restored, 4)]
        rounds = PRESETS / density * 10 if step and title != "FedAvg" else np.full(CLIENTS, float(bool(step)))
        down, up = down + rounds * density * 27.2e6, up + rounds * density * 26.4e6
        noise = rng.normal(0, 0.006) + 0.012 * (seed - 1) * np.exp(-seconds / 900)
        accuracy = final * (1 - 0.97 * np.exp(-seconds / constant)) + noise
        lines.append(
            evaluation(
                float(seconds),
                float(np.clip(accuracy, 0.01, 1.0)),
                tick=step * 10,
                loss=float(4.1 * np.exp(-seconds / constant) + 0.6),
                density=density.tolist(),
                level=np.searchsorted(LADDER, density).tolist(),
                staleness=[None if step == 0 else client for client in range(CLIENTS)],
                updates=[step * 10] * CLIENTS,
                bytes_down=down.astype(int).tolist(),
                bytes_up=up.astype(int).tolist(),
                bytes_server=int(down.sum() * 0.4),
                in_flight=CLIENTS,
                wall=float(seconds) / 30,
            )
        )
    return lines


def write_realistic(root: Path, title: str, seed: int, **fields: Any) -> Path:
    """One directory of the synthetic study."""
    lines = realistic_lines(title, seed)
    facts = {
        "method": title.lower(),
        "method_title": title,
        "seed": seed,
        "clients": CLIENTS,
        "seconds": 2850.0,
        "ticks": lines[-1]["tick"],
        "final_accuracy": lines[-1]["accuracy"],
        "final_loss": lines[-1]["loss"],
        "wall_seconds": 95.0,
    }
    return write_run(root / f"{title.lower()}-{seed}", lines, {**facts, **fields})


@pytest.fixture
def study(tmp_path: Path) -> list[Path]:
    """Four methods, three seeds each, 31 evaluations of 10 clients."""
    return [write_realistic(tmp_path / "study", title, seed) for title in METHODS for seed in (0, 1, 2)]


@pytest.fixture
def small_run(tmp_path: Path) -> Path:
    """Four evaluations whose best is not the last."""
    return write_curve(tmp_path / "small", {0.0: 0.1, 50.0: 0.5, 100.0: 0.8, 200.0: 0.7})
