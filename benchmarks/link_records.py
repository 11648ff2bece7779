"""Records of a run on real links, beside the kernel's counters and the simulated fleet; for `links.py`."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from netns import Count

from fedgmr.exchange import Shipment
from fedgmr.experiments.time_model import counted_levels, make_network
from fedgmr.fleets.links import Link
from fedgmr.recipe import Recipe
from fedgmr.submodels.layout import Layout

_UNSHARED = 1e6  # MiB/s; the server's own uplink does not count


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task whose update arrived, from the run's journal."""

    client: int
    level: int
    sent: float  # seconds of the run
    down: int
    up: int
    took: float
    training: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run on the links."""

    tasks: list[Task]
    metrics: list[dict[str, Any]]
    in_flight: set[int]  # clients whose last task had not ended when the run did
    counted: list[Count]
    idle: list[tuple[float, float]]  # bytes per second without a run, down and up
    window: float  # seconds of the count
    seconds: float  # the run's budget


def read_tasks(directory: Path) -> tuple[list[Task], set[int]]:
    """The tasks of a run whose updates arrived, and the clients with an unfinished task at the end."""
    events = [json.loads(line) for line in (directory / "updates.jsonl").read_text().splitlines()]
    sent: dict[str, dict[str, Any]] = {}
    tasks = []
    for event in events:
        if event["event"] == "dispatched":
            sent[event["task"]] = event
        elif event["event"] in ("accepted", "unmerged", "lost", "refused"):
            order = sent.pop(event["task"], None)
            if order is not None and event["event"] in ("accepted", "unmerged"):
                tasks.append(
                    Task(
                        client=event["client"],
                        level=order["level"],
                        sent=order["seconds"],
                        down=order["bytes"],
                        up=event["bytes"],
                        took=event["took"],
                        training=event["client_seconds"]["train"],
                    )
                )
    return tasks, {order["client"] for order in sent.values()}


class Prediction:
    """The simulated time of a task on these links, with Flower's cost per task as its compute time.

    So much of the cost as `before` and `after` say comes before the download and after the upload.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: Layout,
        links: Sequence[Link],
        overhead: float,
        *,
        before: float = 0.0,
        after: float = 0.0,
    ) -> None:
        self.before, self.after = before, after
        between = max(0.0, overhead - before - after)
        settings = replace(recipe.network, noise=0.0, server_rate=_UNSHARED, compute_seconds=between)
        self.network = make_network(replace(recipe, network=settings), layout, links, ims=False)
        self.levels = counted_levels(layout, recipe.method.levels_in_ladder)

    def task(self, client: int, level: int, *, level_map: bool, sent: float = 0.0) -> tuple[float, int, int]:
        """(seconds, bytes down, bytes up) of a task; `level_map`: whether the map has to be sent too."""
        self.network.known_maps = {} if level_map else {client: (0, level)}
        self.network.uplink_free = 0.0
        shipment = Shipment(client=client, level=level, levels=self.levels, map_version=0, first_batch=0)
        (trip,) = self.network.send([shipment], sent + self.before)
        return trip.arrival + self.after - sent, trip.down, trip.up


def byte_rows(name: str, outcome: Outcome, idle: Sequence[tuple[float, float]]) -> list[dict[str, object]]:
    """Bytes of the kernel and of the metrics, for every link whose last task had ended."""
    rows: list[dict[str, object]] = []
    last = outcome.metrics[-1]
    for client, count in enumerate(outcome.counted):
        if client in outcome.in_flight:
            continue
        for way, payload, ours, baseline in (
            ("down", count.payload_down, last["bytes_down"][client], idle[client][0]),
            ("up", count.payload_up, last["bytes_up"][client], idle[client][1]),
        ):
            kernel = payload - baseline * outcome.window
            rows.append(
                {
                    "run": name,
                    "link": f"{client} {way}",
                    "kernel MB": f"{kernel / 1e6:.3f}",
                    "idle baseline MB": f"{baseline * outcome.window / 1e6:.3f}",
                    "metrics MB": f"{ours / 1e6:.3f}",
                    "difference %": f"{100 * (kernel / ours - 1):+.2f}",
                }
            )
    return rows


def time_rows(name: str, outcome: Outcome, predicted: Prediction, links: Sequence[Link]) -> list[dict[str, object]]:
    """Each task beside the simulated time for its own bytes; medians by client and level."""
    groups: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for task in outcome.tasks:
        cases = [
            predicted.task(task.client, task.level, level_map=level_map, sent=task.sent) for level_map in (False, True)
        ]
        seconds, down, up = min(cases, key=lambda case: abs(case[1] - task.down))
        if abs(down - task.down) > 0.001 * down or abs(up - task.up) > 0.001 * up:
            raise ValueError(f"simulated {down} / {up} bytes, but {task.down} / {task.up} in the journal: {task}")
        groups[task.client, task.level].append((seconds, task.took))
    rows: list[dict[str, object]] = []
    for (client, level), pairs in sorted(groups.items()):
        link, simulated, measured = links[client], [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        ratio = statistics.median(took / seconds for seconds, took in pairs)
        rows.append(
            {
                "run": name,
                "client": client,
                "link MiB/s": f"{link.down:.3g} / {link.up:.3g}",
                "density": f"{predicted.levels.ladder[level]:g}",
                "MB each way": f"{predicted.task(client, level, level_map=False)[2] / 1e6:.2f}",
                "tasks": len(pairs),
                "simulated s": f"{statistics.median(simulated):.1f}",
                "measured s": f"{statistics.median(measured):.1f}",
                "fastest - slowest": f"{min(measured):.1f} - {max(measured):.1f}",
                "difference %": f"{100 * (ratio - 1):+.1f}",
            }
        )
    return rows


def reached(outcome: Outcome, target: float) -> float | None:
    """Seconds of the first evaluation at or above a target."""
    return next((float(row["seconds"]) for row in outcome.metrics if row["accuracy"] >= target), None)


def race_rows(outcomes: Mapping[str, Outcome], target: float) -> list[dict[str, object]]:
    """The time at which each method reached the target."""
    rows: list[dict[str, object]] = []
    for method, outcome in outcomes.items():
        at = reached(outcome, target)
        last = outcome.metrics[-1]
        rows.append(
            {
                "method": method,
                f"s to {100 * target:g} %": f"{at:.0f}" if at is not None else f"not in {outcome.seconds:.0f}",
                "merges": last["tick"],
                "updates": sum(last["updates"]),
                "MB up + down": f"{(sum(last['bytes_up']) + sum(last['bytes_down'])) / 1e6:.0f}",
                "accuracy % at the end": f"{100 * last['accuracy']:.1f}",
            }
        )
    return rows


def within(rows: Sequence[Mapping[str, object]], limit: float) -> bool:
    """Whether every difference is within the limit."""
    return bool(rows) and all(abs(float(str(row["difference %"]))) <= 100 * limit for row in rows)
