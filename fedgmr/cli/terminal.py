"""The terminal's side of a run: its progress, its last line, and warnings in the command's own form."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgmr.recipe import Recipe
from fedgmr.reporting.progress import Progress
from fedgmr.reporting.sweep_progress import SweepProgress


def show_warnings(above: SweepProgress | None = None) -> None:
    """Print warnings as one line each; with a progress display, above it."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if above is not None:
            above.clear()
        print(f"fedgmr: warning: {message}", file=sys.stderr)

    warnings.showwarning = show


def run_progress(recipe: Recipe) -> Progress:
    """Make the progress line of one run."""
    label = f"{recipe.method.title or recipe.method.name} seed {recipe.seed}"
    return Progress(total_seconds=recipe.seconds, label=f"{label} (short)" if recipe.short else label)


def finish_run(progress: Progress, directory: Path, accuracy: float) -> None:
    """End the progress line, write the report and say where it is."""
    progress.close()

    def write() -> Path:
        from fedgmr.reporting.report import write_report

        return write_report(directory)

    print(f"Final accuracy {100 * accuracy:.2f} %. {report_line(write, f'Run: {directory}')}")


def report_line(write: Callable[[], Path], otherwise: str) -> str:
    """Write a report and say where it is, or say `otherwise` where a package for reports is not installed."""
    try:
        return f"Report: {write()}"
    except ModuleNotFoundError as missing:  # the simulator also runs where only torch and numpy are
        package = (missing.name or "").partition(".")[0]
        return f"{otherwise} (no report: the package {package} is not installed)"
