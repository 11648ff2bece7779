"""The recipe: one typed, strict description of a run. Whatever is unknown or out of range is an error.

A run writes its resolved recipe (every default filled in) into its directory; that file alone repeats the run. Read
next: `settings/build.py`, which makes recipes from plain data, and `experiments/assembly.py`, which resolves them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from fedgmr.fleets.deployment import DeploymentSettings
from fedgmr.fleets.network import NetworkSettings
from fedgmr.fleets.presets import FleetSettings
from fedgmr.methods import Method, named_method
from fedgmr.server.participation import Participation
from fedgmr.settings.build import build, settle
from fedgmr.settings.refusals import Place, SettingError, suggestion
from fedgmr.settings.schema import brief, plain, schema
from fedgmr.settings.slots import keys_of
from fedgmr.settings.text import apply_overrides, read_mapping
from fedgmr.settings.trust import check_trusted, foreign_settings
from fedgmr.tasks.partition import IID, ByUser, Dirichlet, Partition
from fedgmr.training.evaluation.statistics import Norm
from fedgmr.training.evaluation.stopping import EarlyStopping
from fedgmr.training.execution import ExecutionSettings
from fedgmr.training.schedules import TrainingSettings

SCHEMA_VERSION = 3
_NAMED = ("method", "task", "fleet")  # sections for which a recipe may give the name alone
_TUNED = ("task", "partition", "fleet", "network", "training", "evaluation")  # sections that `methods` may change


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The task by name, and its options."""

    name: str = field(
        metadata={"help": "a built-in task (`fedgmr list`), or the import path of a function that returns a `Task`"}
    )
    options: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "help": (
                "keyword arguments of that function; it also gets `seed` if it has this parameter. Those of the "
                "built-in tasks are in [data.md](data.md#options-of-the-tasks)"
            )
        },
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The times of evaluations, and the samples they are made on."""

    every_seconds: float | None = field(
        default=None,
        metadata={"above": 0, "help": "virtual seconds between evaluations on the test set; `null`: 10 x the period"},
    )
    metric: str | None = field(
        default=None,
        metadata={
            "help": (
                "the leading [metric](metrics.md) by its name, where a task records several; `null`: the task's own"
            )
        },
    )
    norm: Norm = field(
        default="rebuilt",
        metadata={
            "help": (
                "batch-norm statistics of every model that is tested or handed out. `rebuilt`: built anew for "
                "that model from the server's validation samples, or where clients validate from theirs; "
                "`running`: what clients tracked, averaged; `batch`: those of each test batch"
            )
        },
    )
    views: tuple[Literal["merged", "padded", "levels"], ...] | Literal["merged"] = field(
        default=("merged", "padded", "levels"),
        metadata={
            "help": (
                "the models that are tested. The merged one always is; `padded`: the zero-padded mean of the "
                "latest updates; `levels`: the sub-model of every level. `merged` alone is the fastest. See "
                "[below](#views-the-models-of-a-run)"
            )
        },
    )
    padded_every: int = field(
        default=1, metadata={"at_least": 1, "help": "evaluations from one test of the padded model to the next"}
    )
    levels_every: int = field(
        default=10,
        metadata={"at_least": 1, "help": "the same for all levels; the last ten evaluations test everything"},
    )
    validation: Literal["server", "clients", "test"] = field(
        default="server",
        metadata={
            "help": (
                "the samples that restoration and the choice of a view see: those the server holds out, or "
                "`clients`: each client's own, or `test`: the test set, with nothing held out. The last one makes "
                "accuracies optimistic, and every output of such a run says so"
            )
        },
    )
    validation_samples: int | None = field(
        default=None,
        metadata={
            "at_least": 1,
            "help": (
                "for `server`: number of training samples that it holds out; `null`: as the task says, 5 % for "
                "the built-in tasks"
            ),
        },
    )
    test_samples: int | None = field(
        default=None,
        metadata={
            "at_least": 1,
            "help": (
                "number of test samples, drawn by the seed; the task's title then names it in every output. `null`: all"
            ),
        },
    )
    stop: EarlyStopping | None = field(
        default=None, metadata={"help": "ends a run early, decided on the server's validation samples; none: never"}
    )
    client_holdout: float = field(
        default=0.1,
        metadata={
            "above": 0,
            "below": 1,
            "help": (
                "the share of its samples that a client holds out, drawn by the seed: for `validation: clients`, "
                "and where one of the next two is above 0"
            ),
        },
    )
    clients: int = field(
        default=0,
        metadata={
            "at_least": 0,
            "help": (
                "evaluations from one test *per client* to the next: the model that each client would be handed, "
                "on samples that it holds out; also at the time budget. `0`: never. See "
                "[metrics.md](metrics.md#per-client)"
            ),
        },
    )
    personal: int = field(
        default=0,
        metadata={
            "at_least": 0,
            "help": (
                "steps by which each client fine-tunes its final model on its own samples, as in a task; before "
                "and after, it is tested on those that it holds out. `0`: none"
            ),
        },
    )

    trips: bool | None = field(
        default=None,
        metadata={
            "help": (
                "rows name the tasks dispatched since the last one, with their moments and bytes, and who was "
                "away; `null`: where links vary or clients come and go. See [links.md](links.md#recording)"
            )
        },
    )

    @property
    def of_clients(self) -> bool:
        """Whether models are tested on samples that clients hold out."""
        return self.clients > 0 or self.personal > 0

    def __post_init__(self) -> None:
        settle(self)
        if isinstance(self.views, str):
            object.__setattr__(self, "views", (self.views,))
        if self.stop is not None and self.validation != "server":
            raise ValueError(
                f"stop is given and validation is {self.validation}: a run may end early only by samples that the "
                "server holds out; give validation: server, or leave stop out."
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """The times at which the whole state of a run is saved."""

    every: int | None = field(
        default=None, metadata={"at_least": 1, "help": "ticks between checkpoints; `null`: by the clock"}
    )
    seconds: float = field(
        default=60.0, metadata={"at_least": 0, "help": "wall-clock seconds between checkpoints if `every` is `null`"}
    )
    keep: int = field(default=2, metadata={"at_least": 1, "help": "number of checkpoints kept, the newest"})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a run depends on."""

    schema_version: int = field(default=SCHEMA_VERSION, metadata={"help": "version of this format"})
    name: str = field(
        default="run",
        metadata={
            "help": (
                "names the run in outputs and its directory, where everything but letters, digits, `_`, `-` and "
                "`.` becomes a dot"
            )
        },
    )
    about: str = field(default="", metadata={"help": "one line for `fedgmr list`"})
    short: bool = field(default=False, metadata={"help": "marks the run as shortened in every output"})
    seed: int = field(
        default=0,
        metadata={"at_least": 0, "help": "decides every random draw: data split, initial weights, mini-batches, noise"},
    )
    seconds: float = field(metadata={"above": 0, "help": "time budget in virtual seconds; no merge happens later"})
    task: TaskSettings
    partition: Partition = field(
        default=IID(), metadata={"kinds": (IID, Dirichlet, ByUser), "help": "`iid`, `dirichlet` or `by_user`"}
    )
    method: Method
    fleet: FleetSettings = FleetSettings()
    network: NetworkSettings = NetworkSettings()
    training: TrainingSettings = TrainingSettings()
    participation: Participation = Participation()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    device: str = field(
        default="auto", metadata={"help": "`cpu`, `cuda`, `cuda:N`, or `auto`: the GPU if there is one"}
    )
    execution: ExecutionSettings = ExecutionSettings()
    deployment: DeploymentSettings = DeploymentSettings()

    def __post_init__(self) -> None:
        if not isfinite(self.seconds):
            raise ValueError(f"seconds is {self.seconds}: give a finite time budget.")
        if getattr(self.method.local, "distillation", False) and not self.training.optimizer.plain:
            raise ValueError(
                f"training.optimizer is {self.training.optimizer.kind} and method.local.distillation is true: it takes "
                "two steps per mini-batch, which add up with plain sgd only; set one of them otherwise."
            )
        rule = self.method.restoration
        if rule is not None and rule.server_only and self.evaluation.validation == "clients":
            raise ValueError(
                f"evaluation.validation is clients and method.restoration.{rule.server_only}: only a server with "
                "samples can measure that; set one of them otherwise."
            )

    def __repr__(self) -> str:
        return brief(self)

    @property
    def label(self) -> str:
        """The run for people: method, seed, and what to know before one compares it."""
        marks = ["short"] * self.short + ["decides on the test set"] * (self.evaluation.validation == "test")
        marked = f" ({', '.join(marks)})" if marks else ""
        return f"{self.method.title or self.method.name} seed {self.seed}{marked}"


def recipe_from(data: Mapping[str, Any], overrides: Sequence[str] = (), *, method: str | None = None) -> Recipe:
    """Make the recipe that plain data describes; `plain` in `settings/schema.py` is the inverse.

    Args:
        data: a recipe; its section `methods` holds settings by method name or pattern, used for the method that runs,
            and beside them sections of the recipe that are changed for it.
        overrides: settings `key=value`, applied last.
        method: the method to run instead of the recipe's.
    """
    data = dict(data)
    if method is not None:
        data["method"] = method
    settled = apply_overrides(data, overrides, named=_NAMED)
    version = settled.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int | float) and version != SCHEMA_VERSION:  # its keys may be others, so this comes first
        fix = "; tools/rewrite_results.py rewrites kept runs" if version < SCHEMA_VERSION else ""
        raise SettingError(f"schema_version is {version}: this release reads version {SCHEMA_VERSION}{fix}.")
    tuned = settled.get("methods", {})
    if not isinstance(tuned, Mapping):
        raise Place("methods").refusal(tuned, "a mapping from method names to their settings")
    Place("methods").check_names(tuned)
    name, given = _named(settled.get("method"))
    sections = _tuned_sections(data, tuned, name)
    if sections:
        settled = apply_overrides(data | sections, overrides, named=_NAMED)
    rules = {pattern: {k: v for k, v in settings.items() if k not in _TUNED} for pattern, settings in tuned.items()}
    for pattern, settings in rules.items():
        if "*" not in pattern:
            named_method(pattern, settings, path=f"methods.{pattern}")
        elif ":" not in pattern and not fnmatchcase(name or "", pattern):
            _refuse_unknown(pattern, settings)
    settled = _with_names({key: section for key, section in settled.items() if key != "methods"})
    if name is not None:
        tunings = [settings for pattern, settings in rules.items() if fnmatchcase(name, pattern)]
        settled["method"] = named_method(name, *tunings, given)
    return build(Recipe, settled)


def foreign_recipe(data: Mapping[str, Any], trust: Iterable[str] = ()) -> Recipe:
    """Make a recipe that a run directory or a message describes; it may import only what is trusted.

    Args:
        data: its plain data.
        trust: packages and import paths that are trusted beside those of FEDGMR_TRUST.

    Raises:
        SettingError: it names code that is not trusted, or cannot be understood.
    """
    with foreign_settings(trust):
        recipe = recipe_from(data)
        check_trusted(recipe.task.name, "task.name")  # the task is made later
    return recipe


def _named(method: Any) -> tuple[str | None, dict[str, Any]]:
    """A section `method` as the method's name and its settings; no name where it is no such section."""
    if isinstance(method, str):
        return method, {}
    if not isinstance(method, Mapping):
        return None, {}
    if "name" not in method:
        raise SettingError("method.name is missing: name a method, see `fedgmr list`.")
    if not isinstance(method["name"], str):
        raise Place("method.name").refusal(method["name"], "the name of a method, see `fedgmr list`")
    return method["name"], {key: value for key, value in method.items() if key != "name"}


def _tuned_sections(data: Mapping[str, Any], tuned: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """The sections of a recipe that `methods` changes for the method that runs, as plain data.

    A mistake is refused even where another method runs.
    """
    for pattern, settings in tuned.items():
        if not isinstance(settings, Mapping):
            raise Place(f"methods.{pattern}").refusal(settings, "a mapping of settings")
    if not any(key in settings for settings in tuned.values() for key in _TUNED):
        return {}
    # Of the sections alone: what they must agree on with the method is checked with the method.
    any_other = Recipe(seconds=1.0, task=TaskSettings(name=""), method=Method(name=""))
    given = {key: data[key] for key in _TUNED if key in data}
    base = merged = build(Recipe, _with_names(given), base=any_other)
    changed: dict[str, Any] = {}
    for pattern, settings in tuned.items():
        sections = _with_names({key: settings[key] for key in _TUNED if key in settings})
        matches = name is not None and fnmatchcase(name, pattern)
        built = build(Recipe, sections, path=f"methods.{pattern}", base=merged if matches else base)
        if matches:
            # Options of a task are no fields, so they are not merged yet.
            options = {**merged.task.options, **built.task.options}
            merged = replace(built, task=replace(built.task, options=options))
            changed |= sections
    whole = plain(merged)
    return {key: whole[key] for key in changed}


def _with_names(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {"name": s} if key in _NAMED and isinstance(s, str) else s for key, s in sections.items()}


def _refuse_unknown(pattern: str, settings: Mapping[str, Any]) -> None:
    known = keys_of(Method)
    for key in settings:
        if key not in known:
            fix = suggestion(str(key), [*known, *_TUNED], f"methods.{pattern}.")
            raise SettingError(f"methods.{pattern}.{key} is not a known key: {fix}")


def load_recipe(source: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a file, or by name ("quickstart") one that ships with the package."""
    return recipe_from(read_recipe_data(source), overrides)


def read_recipe_data(source: str) -> dict[str, Any]:
    """Read the plain data of a recipe from a file, or by name from the package."""
    path, shipped = Path(source), shipped_recipes()
    if path.suffix or (path.exists() and not path.is_dir()):  # a run's directory may be called as a recipe is
        return read_mapping(path)
    if source not in shipped:
        fix = suggestion(source, list(shipped))
        raise SettingError(f"The recipe {source!r} is neither a file nor one that ships with the package: {fix}")
    return read_mapping(shipped[source])


def shipped_recipes() -> dict[str, Path]:
    """Return the files of the recipes that ship with the package, by name."""
    root = Path(str(resources.files("fedgmr") / "recipes"))
    return {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.yaml"))}


def recipe_schema() -> dict[str, Any]:
    """Describe recipe files as JSON Schema, for editors."""
    whole = schema(Recipe)
    properties = whole["properties"]
    method = properties["method"]
    tuned = {**method["properties"], **{key: _or_name(key, {**properties[key], "required": []}) for key in _TUNED}}
    properties |= {key: _or_name(key, properties[key]) for key in _NAMED}
    properties["methods"] = {
        "type": "object",
        "description": "settings by method name, used for whichever method runs",
        "additionalProperties": {**method, "properties": tuned, "required": []},
    }
    return whole


def _or_name(key: str, node: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", "description": "a name"}, node]} if key in _NAMED else node
