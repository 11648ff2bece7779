"""The page of one run: `report.html` with facts, figures, a table of evaluations and the recipe.

Read `html_page` next, which the page is made of; `comparison` makes the page of several runs.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgmr.reading import Reading
from fedgmr.reporting import plots
from fedgmr.reporting.chart import Chart
from fedgmr.reporting.html_page import Page
from fedgmr.reporting.quantities import format_bytes, format_seconds
from fedgmr.reporting.records import Curve, Run, read_run

_EVENTS = ("tick", "the server")
_ROWS = 10  # of the tables over time
_CLIENTS = ("time", "mean", "10th percentile", "median", "90th percentile", "worst client", "Jain's index")


def _accuracy_figure(run: Run) -> Chart:
    curve = Curve(seconds=run.history.seconds, mean=run.history.accuracy)
    return plots.accuracy_figure({run.title: curve}, clock=run.clock, reading=run.reading)


FIGURES: Mapping[str, Callable[[Run], Chart]] = {
    "accuracy": _accuracy_figure,
    "density": plots.density_figure,
    "bytes": plots.bytes_figure,
    "clients": plots.clients_figure,  # where clients were measured
}


def write_report(run_dir: str | Path) -> Path:
    """Write the figures (PNG and PDF) and `report.html` into the directory of a run, which may be unfinished.

    Returns:
        The path of the page.
    """
    run, directory = read_run(run_dir), Path(run_dir)
    metric = run.reading
    measured = bool(np.isfinite(run.history.of_clients("p50")).any())
    drawn = {name: draw for name, draw in FIGURES.items() if measured or name != "clients"}
    images = {name: draw(run).save(directory, name) for name, draw in drawn.items()}
    task = run.summary.get("task_title") or run.summary.get("task")
    name = str(run.summary.get("name") or directory.name)
    page = Page(f"{run.title} on {task}" if task else run.title, f"Run {name}", soft=True)
    page.notices(run.notices)
    page.facts(_facts(run))
    page.heading("Figures")
    page.figure(images["accuracy"], f"{metric.title} of the global model on the test data at each evaluation.")
    page.figure(images["density"], "Density of the sub-model each client trains; 1 is the full model.")
    page.figure(images["bytes"], "Data each client received and sent in the whole run (1 MB is 10⁶ bytes).")
    page.heading("Evaluations")
    header = ("time", "tick", metric.name, "loss", "mean density", "updates", "received", "sent")
    page.table(header, *_evaluations(run))
    if measured:
        page.heading("Clients")
        page.figure(
            images["clients"],
            f"{metric.title} of the model that each client would be handed, on samples of its own that it holds out: "
            "the median client in a band from the 10th to the 90th percentile, and the worst client.",
        )
        page.table(_CLIENTS, *_clients(run))
    if tuned := _personal(run):
        steps = run.summary["personal"]["steps"]
        page.heading(f"Fine-tuned {steps} steps by each client")
        page.table(("", *_CLIENTS[1:]), *tuned)
    if views := _views(run):
        page.heading("Models of this run")
        page.table(("model", f"final {metric.name}", "loss", "validation, last evaluations", ""), *views)
    if events := _events(run):
        page.heading("Distrusted clients")
        page.table(_EVENTS, *events)
    page.heading("Provenance")
    page.details("Resolved recipe", run.recipe_text)
    if versions := run.summary.get("versions"):
        lines = "\n".join(f"{package} {version}" for package, version in versions.items())
        page.details("Versions", lines, shown=True)
    return page.write(directory / "report.html")


def _facts(run: Run) -> dict[str, str]:
    history, summary = run.history, run.summary
    wall = summary.get("wall_seconds")
    metric = run.reading
    entries = {
        f"{metric.name} so far" if run.status == "unfinished" else f"final {metric.name}": metric.text(
            run.final_accuracy
        ),
        **_others(run),
        "fleet": str(summary.get("fleet", "")),
        "clients": str(history.density.shape[1]),
        "seed": str(summary.get("seed", "")),
        f"{run.clock} time": format_seconds(run.seconds),
        "ticks": f"{int(summary.get('ticks') or history.tick[-1]):,}",
        "clients received": format_bytes(float(history.bytes_down[-1].sum())),
        "clients sent": format_bytes(float(history.bytes_up[-1].sum())),
        "server sent": format_bytes(float(history.bytes_server[-1])),
        "computed in": format_seconds(float(history.wall[-1] if wall is None else wall)),
        "device": str(summary.get("device", "")),
    }
    return {name: value for name, value in entries.items() if value}


def _others(run: Run) -> dict[str, str]:
    """The last values of the metrics that are recorded beside the leading one."""
    found: Mapping[str, float | None] = run.history[-1].get("metrics") or {}
    readings = {reading.name: reading for reading in Reading.recorded(run.summary or run.history[-1])}
    return {f"final {name}": readings.get(name, Reading(name=name)).text(value) for name, value in found.items()}


def _views(run: Run) -> list[list[str]]:
    """One row per view, where there are several."""
    views: Mapping[str, Mapping[str, float | None]] = run.summary.get("views") or {}
    rows = []
    for name, view in views.items() if len(views) > 1 else ():
        final, validated = (run.reading.text(view[key]) for key in ("accuracy", "validation"))
        loss = "-" if view["loss"] is None else f"{view['loss']:.3f}"
        rows.append([name, final, loss, validated, "best" if name == run.summary.get("best_view") else ""])
    return rows


def _clients(run: Run) -> list[list[str]]:
    """At most ten evenly spaced evaluations per client, the last one included."""
    rows = [row for row in run.history if "mean" in row.get("clients", {})]
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).round().astype(int)
    return [[format_seconds(rows[at]["seconds"]), *_spread(run, rows[at]["clients"])] for at in chosen]


def _personal(run: Run) -> list[list[str]]:
    """Clients before and after fine-tuning, where they did."""
    found: Mapping[str, Any] = run.summary.get("personal") or {}
    return [[name, *_spread(run, found[name])] for name in ("before", "after") if "mean" in found.get(name, {})]


def _spread(run: Run, figures: Mapping[str, Any]) -> list[str]:
    mean, low, middle, high, worst = (
        run.reading.text(figures[name]) for name in ("mean", "p10", "p50", "p90", "worst")
    )
    jain = figures["jain"]
    return [mean, low, middle, high, f"{worst} ({figures['worst_client']})", "-" if jain is None else f"{jain:.3f}"]


def _events(run: Run) -> list[list[str]]:
    """One row per event; those of earlier releases have none."""
    rows = []
    for event in run.summary.get("events") or ():
        text = f"gave client {event.get('client')} no task before tick {event.get('until')}"
        if event.get("event") == "recovered":
            clients = ", ".join(map(str, event.get("clients", ())))
            text = f"went back to the model of tick {event.get('to')} ({event.get('reason')}); since then: {clients}"
        rows.append([str(event.get("tick")), text])
    return rows


def _evaluations(run: Run) -> list[list[str]]:
    """At most ten evenly spaced rows, first and last evaluation included."""
    history, rows = run.history, []
    count = len(history.seconds)
    for index in np.linspace(0, count - 1, min(count, _ROWS)).round().astype(int):
        loss = float(history.loss[index])
        rows.append(
            [
                format_seconds(float(history.seconds[index])),
                f"{history.tick[index]:,}",
                run.reading.text(float(history.accuracy[index])),
                f"{loss:.3f}" if math.isfinite(loss) else "-",
                f"{np.mean(history.density[index]):.2f}",
                f"{history.updates[index].sum():,}",
                format_bytes(float(history.bytes_down[index].sum())),
                format_bytes(float(history.bytes_up[index].sum())),
            ]
        )
    return rows
