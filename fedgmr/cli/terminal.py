"""The terminal's side of a run: its row in the display, its last line, and warnings in the command's own form."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgmr.recipe import Recipe
from fedgmr.reporting.display import Display, RunRow


def show_warnings() -> None:
    """Print warnings as one line each; a live display lets them appear above it."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"fedgmr: warning: {message}", file=sys.stderr)

    warnings.showwarning = show


def show_run(display: Display, recipe: Recipe) -> RunRow:
    """Add a run to the display; its row is the run's watcher."""
    label = f"{recipe.method.title or recipe.method.name} seed {recipe.seed}"
    return display.begin("", f"{label} (short)" if recipe.short else label, recipe.seconds)


def finish_run(directory: Path, accuracy: float) -> None:
    """Write the report of a run and say where it is."""

    def write() -> Path:
        from fedgmr.reporting.report import write_report

        return write_report(directory)

    print(f"Final accuracy {100 * accuracy:.2f} %. {report_line(write, f'Run: {directory}')}")


def report_line(write: Callable[[], Path], otherwise: str) -> str:
    """Write a report and say where it is, or say `otherwise` where a package for reports is not installed."""
    try:
        return f"Report: {write()}"
    except ModuleNotFoundError as missing:  # the simulator also runs without matplotlib
        package = (missing.name or "").partition(".")[0]
        return f"{otherwise} (no report: the package {package} is not installed)"
