"""MANY RUNS: a set of recipes, done once each, however often and wherever it is asked for."""

from fedgmr.experiments.sweep.grid import GridPoint, grid_points
from fedgmr.experiments.sweep.keys import recipe_key
from fedgmr.experiments.sweep.outlook import expected_runs
from fedgmr.experiments.sweep.perform import check_jobs, exit_code, perform_sweep, run_sweep
from fedgmr.experiments.sweep.plan import (
    PlannedRun,
    describe_plan,
    find_finished,
    plan_comparison,
    plan_sweep,
    run_status,
    unfinished_comparison,
)
from fedgmr.experiments.sweep.work import Outcome, SweepWatcher

__all__ = [
    "GridPoint",
    "Outcome",
    "PlannedRun",
    "SweepWatcher",
    "check_jobs",
    "describe_plan",
    "exit_code",
    "expected_runs",
    "find_finished",
    "grid_points",
    "perform_sweep",
    "plan_comparison",
    "plan_sweep",
    "recipe_key",
    "run_status",
    "run_sweep",
    "unfinished_comparison",
]
