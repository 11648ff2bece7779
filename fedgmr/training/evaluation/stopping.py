"""Early stopping: when the validation samples say that a run has learned enough.

A function of the recorded scores alone, so a resumed run decides as an uninterrupted one. Read next:
`experiments/watching.py`, which asks after each evaluation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedgmr.tasks.metrics import Metric


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Ends a run by the merged model's leading metric on the samples that the server holds out."""

    patience: int | None = field(
        default=None,
        metadata={
            "at_least": 1,
            "help": (
                "ends the run after so many evaluations in a row without a better score; `null`: never. See "
                "[below](#ending-a-run-early)"
            ),
        },
    )
    improvement: float = field(
        default=0.0,
        metadata={
            "at_least": 0,
            "help": "a score counts as better if it is better by more than this, in the values of the metric",
        },
    )
    target: float | None = field(
        default=None, metadata={"help": "ends the run when the metric has reached this value; `null`: no value"}
    )

    def __post_init__(self) -> None:
        if self.patience is None and self.target is None:
            raise ValueError("patience and target are none: give one of them, or leave stop out.")

    def reason(self, values: Sequence[float], metric: Metric) -> str | None:
        """Why a run with these values, one per evaluation, ends now; None while it goes on."""
        newest = values[-1]
        if self.target is not None and metric.score(newest) >= metric.score(self.target):
            return f"the validation {metric.name} {metric.text(newest)} has reached {metric.target_text(self.target)}"
        best, waited = metric.score(values[0]), 0
        for value in values[1:]:
            better = metric.score(value) > best + self.improvement
            best, waited = (metric.score(value), 0) if better else (best, waited + 1)
        if self.patience is None or waited < self.patience:
            return None
        known = f"{metric.text(metric.score(best))} is the best"
        return f"the validation {metric.name} has not improved in {waited} evaluations ({known})"
