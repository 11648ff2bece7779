"""The runs of a table: which it needs, which there are, about how long the others will take.

They are done by `fedgmr.experiments.sweep`. Read next: `making.py`, from the runs to the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgmr.experiments.assembly import resolve_times
from fedgmr.experiments.sweep import PlannedRun, plan_sweep
from fedgmr.paper.estimate import estimate
from fedgmr.paper.grid import (
    HETEROGENEITIES,
    SPLITS,
    TASKS,
    Setting,
    chosen,
    has_recipe,
    paper_layout,
)
from fedgmr.paper.numbers import Paper, read_paper
from fedgmr.paper.studies import COMPUTED, Study, studies
from fedgmr.recipe import Recipe
from fedgmr.reporting.quantities import format_duration
from fedgmr.settings.refusals import SettingError, suggestion
from fedgmr.submodels.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which table, and which part of it."""

    name: str
    task: str | None = None  # names with commas; None: all
    heterogeneity: str | None = None
    split: str | None = None
    seeds: int = 1
    short: bool = False
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in table_names():
            raise SettingError(f"The table {self.name!r} is not known: {suggestion(self.name, table_names())}")
        if self.seeds < 1:
            raise SettingError(f"--seeds is {self.seeds}: give at least 1.")

    @property
    def slug(self) -> str:
        """A name for files."""
        parts = [self.name, self.task, self.heterogeneity, self.split, "short" if self.short else None]
        return "-".join(part.replace(",", "+") for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A run that a table needs, and for which cell."""

    setting: Setting
    variant: str
    run: PlannedRun


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs of a table."""

    request: Request
    study: Study
    paper: Paper
    settings: tuple[Setting, ...]
    wanted: tuple[Wanted, ...]

    @property
    def runs(self) -> list[PlannedRun]:
        """Each once: variants may share a run."""
        return list({wanted.run.key: wanted.run for wanted in self.wanted}.values())

    @property
    def to_do(self) -> list[PlannedRun]:
        """Those that are missing or interrupted."""
        return [run for run in self.runs if run.to_do]

    def summary(self) -> str:
        """How many runs there are, and how far they are."""
        counts = {
            name: sum(run.status == name for run in self.runs) for name in ("finished", "interrupted", "diverged")
        }
        parts = [f"{count} {name}" for name, count in counts.items() if count or name == "finished"]
        text = f"{len(self.runs)} runs: {', '.join(parts)}, {len(self.to_do)} to do"
        left_out = self.without_recipe()
        return text + (f"; no recipe for {', '.join(left_out)}" if left_out else "") + "."

    def without_recipe(self) -> list[str]:
        """Tasks that cannot be run because no recipe ships with the package."""
        tasks = dict.fromkeys(setting.task for setting in self.settings)
        return [TASKS[task] for task in tasks if not has_recipe(task, short=self.request.short)]


def table_names() -> list[str]:
    """Every table of the paper that can be asked for."""
    return [*studies(), *COMPUTED]


def plan_table(request: Request, store: Path, *, also: Sequence[Path] = ()) -> Plan:
    """The runs of a table: where they are or will be, and how far; nothing is written."""
    study, paper = studies()[request.name], read_paper()
    names = (
        chosen("--task", request.task, TASKS),
        chosen("--heterogeneity", request.heterogeneity, HETEROGENEITIES),
        chosen("--split", request.split, SPLITS),
    )
    settings = [
        s for s in study.settings(paper) if (s.task in names[0] and s.heterogeneity in names[1] and s.split in names[2])
    ]
    if not settings:
        raise SettingError(f"The paper's table {request.name} has no such cell: give other filters or none.")
    cells = [
        (setting, variant, seed)
        for setting in settings
        if has_recipe(setting.task, short=request.short)
        for variant in study.rows(request.short)
        for seed in range(request.seeds)
    ]
    layouts = {setting.task: paper_layout(setting.task) for setting in settings}
    recipes = [
        _timed(study.recipe(setting, variant, seed=seed, short=request.short, overrides=request.overrides), layouts)
        for setting, variant, seed in cells
    ]
    runs = plan_sweep(recipes, store, also=also)
    wanted = tuple(
        Wanted(setting=setting, variant=variant, run=run)
        for (setting, variant, _), run in zip(cells, runs, strict=True)
    )
    return Plan(request=request, study=study, paper=paper, settings=tuple(settings), wanted=wanted)


def _timed(recipe: Recipe, layouts: Mapping[str, Layout]) -> Recipe:
    """The recipe with its times worked out, so that its key needs no data; as it is where it has another task."""
    name = recipe.task.name
    return resolve_times(recipe, lambda: layouts[name]) if name in layouts else recipe


def estimate_table(plan: Plan) -> dict[str, float]:
    """Wall seconds that each run still to do will take here, by name; an interrupted one is counted whole."""
    return dict(zip([run.name for run in plan.to_do], estimate([run.recipe for run in plan.to_do]), strict=True))


def estimate_text(seconds: Mapping[str, float], jobs: int = 1) -> str:
    """About how long the runs will take, and what that rests on."""
    if not seconds:
        return "Nothing to run."
    total = sum(seconds.values())
    span = dict.fromkeys(format_duration(pick(seconds.values())) for pick in (min, max))
    at_once = f", at best {format_duration(total / jobs)} with {jobs} at once" if jobs > 1 else ""
    return (
        f"About {format_duration(total)} of computing{at_once}; {' to '.join(span)} a run. Assumed: a client's task "
        "and an evaluation take as long as just now on this device, updates come as the time model has them with no "
        "client restored, nothing else takes time."
    )
