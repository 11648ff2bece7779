"""Weights & Biases: one run each. Offline unless WANDB_MODE says otherwise; `wandb sync` sends it later."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from fedgmr.reporting.run_files import RunFiles, flattened
from fedgmr.trackers.tracker import GOOD_ENDS, Values


class WeightsAndBiases:
    """Rows become steps, which W&B never takes back."""

    takes_back = False

    def __init__(self, exported: Path, output: Path | None) -> None:
        self.folder = output or exported
        self.group = exported.resolve().name
        self.runs: dict[str, Any] = {}

    def begin(self, run: RunFiles) -> None:
        """Open a run with the recipe as its config."""
        self.folder.mkdir(parents=True, exist_ok=True)
        opened = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedgmr"),
            group=self.group,
            name=run.name,
            id=run.key,
            config=run.settings(),
            dir=str(self.folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        opened.define_metric("*", step_metric="seconds")
        self.runs[run.name] = opened

    def add(self, run: RunFiles, first: int, rows: Sequence[Values]) -> None:
        """Log rows."""
        for step, values in enumerate(rows, start=first):
            self.runs[run.name].log(dict(values), step=step)

    def take_back(self, run: RunFiles, first: int) -> None:
        """Never called."""
        raise NotImplementedError

    def flush(self) -> None:
        """Nothing: rows go out at once."""

    def end(self, run: RunFiles, summary: Mapping[str, Any]) -> None:
        """Finish the run; it has failed where the summary does not say that it came to its end."""
        opened = self.runs.pop(run.name)
        opened.summary.update({name: value for name, value in flattened(summary).items() if value is not None})
        opened.finish(exit_code=0 if summary.get("status") in GOOD_ENDS else 1)

    def close(self) -> str:
        """Finish what is open."""
        for opened in self.runs.values():
            opened.finish(exit_code=1)
        wandb.teardown()  # a process of its own may still be writing
        return f"{self.folder / 'wandb'}"
