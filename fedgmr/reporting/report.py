"""The page of one run: `report.html`, one file that opens anywhere, offline, on a phone or in the dark.

Everything is inside the file (images as data, style in the head) and a content policy forbids the rest.
The building blocks `page`, `table`, `notice` and `figure` also make the page of a comparison.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from fedgmr.files import write_atomic
from fedgmr.reporting import plots
from fedgmr.reporting.quantities import format_bytes, format_percent, format_seconds
from fedgmr.reporting.rundir import Curve, Run, read_run

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5c636b; --line: #dfe2e6; --paper: #fff;
  --card: #f5f6f8; --warn: #fff3cd; --warn-ink: #5c4400; --warn-line: #e0b83a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a0a7b0; --line: #363b42;
  --paper: #16181c; --card: #20242a; --warn: #3a2f0b; --warn-ink: #ffe49a; --warn-line: #8a6d14; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 54rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.notice { border: 1px solid var(--warn-line); border-left-width: 5px; border-radius: 6px;
  background: var(--warn); color: var(--warn-ink); padding: .55rem .9rem; margin: .9rem 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; }
.facts div { background: var(--card); border-radius: 8px; padding: .55rem .8rem; }
.facts dt { color: var(--soft); font-size: .8rem; }
.facts dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.facts div:first-child { grid-column: 1 / -1; }
.facts div:first-child dd { font-size: 1.9rem; line-height: 1.25; }
figure { margin: 1.2rem 0; } figcaption { color: var(--soft); font-size: .88rem; margin-top: .4rem; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
.image { background: #fff; } .image img { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .8rem; text-align: right; white-space: nowrap; }
th { color: var(--soft); white-space: normal; vertical-align: bottom; }
td { border-top: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
details { border: 1px solid var(--line); border-radius: 8px; padding: .6rem .9rem; margin: .8rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; margin: .6rem 0 0; font: .85rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_ROWS = 10  # of the table of evaluations


def write_report(run_dir: str | Path) -> Path:
    """Write the figures (PNG and PDF) and `report.html` into a run directory.

    Args:
        run_dir: a run directory; the run may be unfinished.

    Returns:
        The path of the page. It is replaced whole, so an open browser never loads half of one.

    Raises:
        ValueError: `run_dir` is not a run directory.
    """
    run = read_run(run_dir)
    curve = Curve(seconds=run.history.seconds, mean=run.history.accuracy)
    figures = {
        "accuracy": plots.accuracy_figure({run.title: curve}, clock=run.clock),
        "density": plots.density_figure(run),
        "bytes": plots.bytes_figure(run),
    }
    images = plots.save_figures(figures, run.path)
    path = run.path / "report.html"
    write_atomic(path, page(_headline(run), _body(run, images)))
    return path


def page(title: str, body: str) -> str:
    """A complete HTML document that refers to nothing outside itself; `body` is HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{_STYLE}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def figure(image: bytes, caption: str) -> str:
    """A PNG image inside the page; the caption is also what a screen reader says."""
    data = base64.b64encode(image).decode()
    return (
        f'<figure><div class="wide image"><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"</div><figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways where the screen is narrow."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def notice(text: str) -> str:
    """A sentence nobody should miss."""
    return f'<p class="notice" role="note">{escape(text)}</p>'


def facts(entries: Mapping[str, str]) -> str:
    """Cards with a name and a value each, the first one large."""
    cards = [f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries.items()]
    return f'<dl class="facts">{"".join(cards)}</dl>'


def run_notices(run: Run) -> list[str]:
    """What a reader must know before believing the numbers of a run."""
    notices = []
    end = format_seconds(float(run.history.seconds[-1]))
    if run.status == "unfinished":
        notices.append(f"This run has not finished: it is still going, or was interrupted. Shown up to {end}.")
    elif run.status == "diverged":
        notices.append(f"This run diverged: its numbers describe a broken model. Shown up to {end}.")
    elif run.status != "finished":
        notices.append(f"This run ended with status “{run.status}”. Shown up to {end}.")
    if run.summary.get("short"):
        notices.append("Short run: a shortened recipe, good for trying things out, not for conclusions.")
    if run.summary.get("stand_in"):
        notices.append(f"Stand-in data: {run.summary['stand_in']}.".replace("..", "."))
    return notices


def _headline(run: Run) -> str:
    task = run.summary.get("task_title") or run.summary.get("task")
    return f"{run.title} on {task}" if task else run.title


def _body(run: Run, images: Mapping[str, bytes]) -> str:
    name = str(run.summary.get("name") or run.path.name)
    versions = run.summary.get("versions") or {}
    parts = [
        f"<header><h1>{escape(_headline(run))}</h1>",
        f'<p class="soft">Run {escape(name)}</p></header>',
        *map(notice, run_notices(run)),
        facts(_facts(run)),
        "<h2>Figures</h2>",
        figure(images["accuracy"], "Accuracy of the global model on the test data at each evaluation."),
        figure(images["density"], "Density of the sub-model each client trains; 1 is the full model."),
        figure(images["bytes"], "Data each client received and sent in the whole run (1 MB is 10⁶ bytes)."),
        "<h2>Evaluations</h2>",
        table(*_evaluations(run)),
        "<h2>Provenance</h2>",
        f"<details><summary>Resolved recipe</summary><pre>{escape(run.recipe_text)}</pre></details>",
    ]
    if versions:
        lines = "\n".join(f"{package} {version}" for package, version in versions.items())
        parts.append(f"<details open><summary>Versions</summary><pre>{escape(lines)}</pre></details>")
    return "\n".join(parts)


def _facts(run: Run) -> dict[str, str]:
    history, summary = run.history, run.summary
    wall = summary.get("wall_seconds")
    accuracy = format_percent(run.final_accuracy, 2)
    entries = {
        "accuracy so far" if run.status == "unfinished" else "final accuracy": accuracy,
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


def _evaluations(run: Run) -> tuple[list[str], list[list[str]]]:
    """Header and at most ten evenly spaced rows, first and last evaluation included."""
    header = ["time", "tick", "accuracy", "loss", "mean density", "updates", "received", "sent"]
    history = run.history
    rows = []
    for index in plots.spaced(len(history.seconds), _ROWS):
        loss = float(history.loss[index])
        rows.append(
            [
                format_seconds(float(history.seconds[index])),
                f"{history.tick[index]:,}",
                format_percent(float(history.accuracy[index]), 2),
                f"{loss:.3f}" if math.isfinite(loss) else "-",
                f"{np.mean(history.density[index]):.2f}",
                f"{history.updates[index].sum():,}",
                format_bytes(float(history.bytes_down[index].sum())),
                format_bytes(float(history.bytes_up[index].sum())),
            ]
        )
    return header, rows
