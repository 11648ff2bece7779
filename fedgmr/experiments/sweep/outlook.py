"""The runs of a plan as a display shows them before they start: what is known of each, and how long it may take."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedgmr.experiments.sweep.plan import PlannedRun
from fedgmr.files import METRICS, SUMMARY, last_row, read_json
from fedgmr.reporting.rows import ExpectedRun

_READINGS = ("readings", "metric")


def expected_runs(
    plan: Sequence[PlannedRun], seconds: Mapping[str, float] | None, about: Mapping[str, Sequence[str]]
) -> list[ExpectedRun]:
    """Each run of a plan once.

    Args:
        plan: the runs, in the order in which they start.
        seconds: wall seconds of those that are to be done, by name; None: work is counted in virtual seconds.
        about: words about every run beside method and seed, by name; those that all share, or that say
            what the label says, are left out.
    """
    shared = [len(set(column)) == 1 for column in zip(*about.values(), strict=True)]
    expected = []
    for run in {run.key: run for run in plan}.values():
        told = zip(about.get(run.name, ()), shared, strict=False)
        words = [word for word, same in told if not same and word not in run.recipe.label]
        last = _last(run)
        done = float(last.get("seconds", 0.0))
        left = run.recipe.seconds - done if seconds is None else seconds.get(run.name, 0.0)
        expected.append(
            ExpectedRun(
                name=run.name,
                label=" ".join([run.recipe.label, *words]),
                seconds=run.recipe.seconds,
                work=left if run.to_do else 0.0,
                done=done,
                status="" if run.to_do else run.status,
                last={name: value for name, value in last.items() if name != "seconds"},
            )
        )
    return expected


def _last(run: PlannedRun) -> dict[str, Any]:
    """The last accuracy of a run that has begun, with how it is read and when it was."""
    if run.status == "missing":
        return {}
    summary = read_json(run.directory / SUMMARY)
    row = last_row(run.directory / METRICS) or {}
    known = {name: data[name] for data in (row, summary) for name in _READINGS if name in data}
    if "final_accuracy" in summary:
        known["accuracy"] = summary["final_accuracy"]
    elif "accuracy" in row:
        known["accuracy"] = row["accuracy"]
    return known | {"seconds": row.get("seconds", 0.0)}
