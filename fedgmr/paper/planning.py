"""All tables, and the runs of one: which it needs, which there are, which are missing.

`fedgmr.experiments.sweep` performs them. Read next: `making.py`, from the runs to the table.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedgmr.experiments.assembly import resolve_times
from fedgmr.experiments.estimate import Estimate
from fedgmr.experiments.sweep import PlannedRun, plan_sweep
from fedgmr.methods import PAPER, named_method
from fedgmr.paper.grid import HETEROGENEITIES, SPLITS, TASKS, Setting, paper_layout
from fedgmr.paper.growth import DENSITIES, GrowthStudy
from fedgmr.paper.numbers import Paper
from fedgmr.paper.protocols import DEFAULT, PROTOCOLS
from fedgmr.paper.studies import BaselineStudy, PatienceStudy, PluginStudy, Study
from fedgmr.reporting.quantities import format_duration
from fedgmr.settings.refusals import SettingError, suggestion

COMPUTED = ("ims-cost", "communication")  # by the network model, without runs: `computed.py`
_AGGREGATIONS = {
    "fedgmr": "GMR + MA",
    "fedgmr/ga": "GMR + GA",
    "fedgmr/fa": "GMR + FA",
    "fedgmr_without_restoration": "w/o GMR + MA",
    "fedgmr_without_restoration/ga": "w/o GMR + GA",
    "fedgmr_without_restoration/fa": "w/o GMR + FA",
}
_ABLATIONS = {
    "fedgmr": "FedGMR",
    "fedgmr_without_asynchrony": "w/o Asyn",
    "fedgmr_without_restoration": "w/o GMR",
    "fedgmr_without_buffer": "w/o Buff",
    "fedgmr_without_ims": "w/o IMS",
    "fedgmr_without_buffer_and_ims": "w/o (Buff, IMS)",
}
_FIXED_TIME = {
    "fedgmr": "GMR (ES)",
    "fedgmr/fixed_time": "GMR (Fixed)",
    "fedgmr_without_asynchrony": "w/o Asyn",
    "fedgmr_without_restoration": "w/o GMR",
}
_PLUGGED = [
    f"{base}{step}" for base in ("heterofl", "fjord", "fedrolex", "fiarse") for step in ("", "+aux", "+aux+gmr")
]


def studies() -> dict[str, Study]:
    """Every table that is made of runs, by name."""

    def titled(names: Sequence[str]) -> Mapping[str, str]:
        return {name: named_method(name).title for name in names}

    def patient(values: Sequence[int]) -> Mapping[str, str]:
        return {"fedgmr_without_restoration": "w/o GMR"} | {f"fedgmr/patience={n}": f"patience {n}" for n in values}

    every = (
        BaselineStudy(name="baselines", title="FedGMR and the baselines", rows=titled(PAPER)),
        Study(name="aggregation", title="Rules of aggregation with and without GMR", rows=_AGGREGATIONS),
        Study(name="ablation", title="FedGMR without its parts", rows=_ABLATIONS),
        PluginStudy(name="plugin", title="GMR plugged into other methods", rows=titled(_PLUGGED)),
        PatienceStudy(
            name="patience", title="FedGMR by patience", rows=patient((3, 5, 10, 20)), short_rows=patient((1, 2, 3))
        ),
        Study(name="fixed-time", title="Restoration by saturation and at fixed times", rows=_FIXED_TIME),
        GrowthStudy(
            name="density-growth",
            title="Growth of accuracy by density",
            about="Points of accuracy per 100 merges in three stages of a run, every client at the same fixed density.",
            at_t_star=False,
            rows={f"density={density}": f"density {density:g}" for density in DENSITIES},
        ),
    )
    return {study.name: study for study in every}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A table, and the wanted part of it."""

    name: str
    task: str | None = None  # names with commas; None: all
    heterogeneity: str | None = None
    split: str | None = None
    seeds: int = 1
    short: bool = False
    protocol: str = ""  # empty: the default, or for a table that is computed the paper's
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [*studies(), *COMPUTED]
        if self.name not in known:
            raise SettingError(f"The table {self.name!r} is not known: {suggestion(self.name, known)}")
        if not self.protocol:
            object.__setattr__(self, "protocol", "paper" if self.name in COMPUTED else DEFAULT)
        if self.protocol not in PROTOCOLS:
            raise SettingError(f"--protocol is {self.protocol!r}: {suggestion(self.protocol, list(PROTOCOLS))}")
        if self.seeds < 1:
            raise SettingError(f"--seeds is {self.seeds}: give at least 1.")

    @property
    def slug(self) -> str:
        """A name for files."""
        parts = [self.name, self.protocol, self.task, self.heterogeneity, self.split, "short" if self.short else None]
        return "-".join(part.replace(",", "+") for part in parts if part)

    def settings(self, study: Study, paper: Paper) -> list[Setting]:
        """The settings of the table that the filters leave; SettingError where they leave none."""
        options = (
            ("--task", self.task, TASKS),
            ("--heterogeneity", self.heterogeneity, HETEROGENEITIES),
            ("--split", self.split, SPLITS),
        )
        for option, given, known in options:
            for name in [] if given is None else given.split(","):
                if name not in known:
                    raise SettingError(f"{option} is {name!r}: {suggestion(name, list(known))}")
        tasks, levels, splits = (list(known) if given is None else given.split(",") for _, given, known in options)
        found = [
            s for s in study.settings(paper) if s.task in tasks and s.heterogeneity in levels and s.split in splits
        ]
        if not found:
            raise SettingError(f"The paper's table {self.name} has no such cell: give other filters or none.")
        return found


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """The runs of a table."""

    request: Request
    study: Study
    paper: Paper
    settings: tuple[Setting, ...]
    cells: Mapping[tuple[Setting, str], Sequence[PlannedRun]]  # by setting and variant, one run per seed

    @property
    def runs(self) -> list[PlannedRun]:
        """Each run once: variants may share one."""
        return list({run.key: run for runs in self.cells.values() for run in runs}.values())

    @property
    def to_do(self) -> list[PlannedRun]:
        """The runs that are missing or interrupted."""
        return [run for run in self.runs if run.to_do]

    def summary(self) -> str:
        """The number of runs, and their progress."""
        counts = Counter[str](run.status for run in self.runs)
        shown = [name for name in ("finished", "interrupted", "diverged") if counts[name] or name == "finished"]
        parts = [f"{counts[name]} {name}" for name in shown]
        return f"{len(self.runs)} runs: {', '.join(parts)}, {len(self.to_do)} to do."

    def estimate_text(self, estimate: Estimate, jobs: int = 1) -> str:
        """About how long the runs will take, and what that rests on."""
        if not estimate.seconds:
            return "Nothing to run."
        if estimate.known is None:
            return "How long it takes is not known."
        total = sum(estimate.known.values())
        span = dict.fromkeys(format_duration(pick(estimate.known.values())) for pick in (min, max))
        at_once = f", at best {format_duration(total / jobs)} with {jobs} at once" if jobs > 1 else ""
        text = f"About {format_duration(total)} of computing{at_once}; {' to '.join(span)} a run"
        if not estimate.timed:
            return f"{text}, going by earlier runs."
        return (
            f"{text}. Assumed: a client's task and an evaluation take as long as just now on this device, updates come "
            "as the time model has them with no client restored, nothing else takes time."
        )


def plan_table(request: Request, store: Path, *, also: Sequence[Path] = ()) -> TablePlan:
    """Find the runs of a table: where they are or will be, and how far; nothing is written."""
    study, paper = studies()[request.name], Paper.read()
    settings = request.settings(study, paper)
    places = [
        (setting, variant, seed)
        for setting in settings
        for variant in study.variants(short=request.short)
        for seed in range(request.seeds)
    ]
    recipes = []
    for setting, variant, seed in places:
        recipe = study.recipe(
            setting,
            variant,
            protocol=request.protocol,
            seed=seed,
            short=request.short,
            overrides=request.overrides,
        )
        if recipe.task.name in TASKS:  # with its times worked out, its key needs no data
            recipe = resolve_times(recipe, partial(paper_layout, recipe.task.name, recipe.task.options))
        recipes.append(recipe)
    cells: dict[tuple[Setting, str], list[PlannedRun]] = {}
    for (setting, variant, _), run in zip(places, plan_sweep(recipes, store, also=also), strict=True):
        cells.setdefault((setting, variant), []).append(run)
    return TablePlan(request=request, study=study, paper=paper, settings=tuple(settings), cells=cells)
