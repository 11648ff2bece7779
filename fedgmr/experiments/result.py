"""The result of a run: recipe, history, summary, models; the same from `simulate` and from a run directory.

`Result` is a `Run` of `reporting/records.py` with the models that it can hand out. Read next: `progress.py`, which
makes it; `views.py`, its models.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedgmr.experiments.arguments import directory_of
from fedgmr.experiments.assembly import given_task
from fedgmr.experiments.checkpoint import save_model
from fedgmr.experiments.rundir import create_run, locked, read_recipe, write_summary
from fedgmr.experiments.seal import check_models, read_sealed_run, recipe_digest
from fedgmr.experiments.views import MERGED, Views, level_name
from fedgmr.files import MODEL, VIEWS, digest_file
from fedgmr.recipe import Recipe
from fedgmr.reporting.display import in_notebook
from fedgmr.reporting.plots import FIGURES
from fedgmr.reporting.recorder import Recorder
from fedgmr.reporting.records import Run
from fedgmr.settings.refusals import SettingError, suggestion
from fedgmr.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OF_FILES = ("models", "digest")  # what a summary says of the files beside it


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result(Run):
    """The result of a run, live or read back."""

    recipe: Recipe
    views: Views | None  # all models that the run can hand out; None before it has ended
    task: Task | None = field(default=None)  # None: as the recipe names it

    def __repr__(self) -> str:
        where = f", {str(self.path)!r}" if self.path else ""
        score = f"{self.reading.name} {self.reading.text(self.final_accuracy)}"
        after = f"{self.history.seconds[-1]:g} s"
        return f"Result({self.title} on {self.recipe.task.name}: {self.status}, {score} after {after}{where})"

    @cached_property
    def model(self) -> dict[str, Tensor]:
        """The final model of the best view, by parameter and buffer name."""
        return self.final_views.state(self.summary.get("best_view") or MERGED)

    def view_for(self, client: int) -> str:
        """The name of the view that a client would be handed: its level's sub-model."""
        levels = self.history.level[-1]
        if not isinstance(client, int) or not 0 <= client < len(levels):
            raise SettingError(f"client is {client!r}: give a number from 0 to {len(levels) - 1}.")
        return level_name(self.final_views.ladder[int(levels[client])])

    def model_for(self, client: int) -> nn.Module:
        """A module with the weights that a client would be handed, zero outside its sub-model; ready to evaluate.

        Its batch-norm statistics are those that the sub-model is tested with.
        """
        return self.module(self.view_for(client))

    def module(self, view: str) -> nn.Module:
        """A module with the weights of a view, ready to evaluate."""
        state = self.final_views.state(view)
        module = self.made_task.initial_model(self.recipe.seed)
        module.load_state_dict(state)
        return module.eval()

    def frame(self, *, clients: bool = False) -> Any:
        """The history as a pandas DataFrame: a row per evaluation, or per evaluation and client."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            fix = "install it (pip install pandas), or take result.history.table()"
            raise SettingError(f"frame() needs the package pandas, which is not installed: {fix}.") from error
        return pandas.DataFrame(self.history.client_table() if clients else self.history.table())

    def plot(self, figure: str = "accuracy") -> "Figure":
        """Draw `accuracy`, `density`, `bytes` or `clients`; returns the matplotlib figure."""
        if figure not in FIGURES:
            raise SettingError(f"figure is {figure!r}: {suggestion(str(figure), list(FIGURES))}")
        if in_notebook():
            import matplotlib.pyplot  # noqa: F401 - which teaches a notebook to show figures
        return FIGURES[figure](self).figure

    def save(self, path: str | Path) -> Path:
        """Write a run directory and return it: recipe, rows, summary, models; no checkpoints, which memory has not."""
        directory = directory_of(path, "path")
        if not self.recipe_text:
            raise SettingError("The recipe of this run has a part that no file can hold, so it cannot be saved.")
        with locked(directory):
            create_run(directory, self.recipe_text)
            recorder = Recorder(directory)
            for row in self.history:
                recorder.record(dict(row))
            recorder.close()
            if self.summary:
                models = {} if self.views is None else save_models(directory, self)
                summary = {**self.summary, "recipe_digest": recipe_digest(directory), "models": models}
                write_summary(directory, summary)
        return directory

    @cached_property
    def made_task(self) -> Task:
        """The task: the given one, or made as the recipe names it."""
        return given_task(self.recipe, self.task)

    @property
    def final_views(self) -> Views:
        """The models that the run can hand out; SettingError before it has ended."""
        if self.views is None:
            raise SettingError(
                f"{self.path or 'The run'} is {self.status} and has no final model: resume or repeat it."
            )
        return self.views


def load(directory: str | Path, *, task: Task | None = None, trust: Iterable[str] = ()) -> Result:
    """Read the run in a directory, finished or not, as `simulate` returned it.

    Args:
        directory: a run directory.
        task: the Task object of a run whose recipe does not name it by an import path; only `model_for` needs it.
        trust: packages or import paths that its recipe may import, beside those of FEDGMR_TRUST.
    """
    place = directory_of(directory, "directory")
    recipe, run = read_recipe(place, trust), read_sealed_run(place)
    check_models(place, run.summary)
    summary = {name: value for name, value in run.summary.items() if name not in _OF_FILES}
    return Result(
        path=place,
        recipe_text=run.recipe_text,
        summary=summary,
        history=run.history,
        recipe=recipe,
        views=_read_views(place, recipe, summary.get("best_view") or MERGED),
        task=task,
    )


def _read_views(directory: Path, recipe: Recipe, best: str) -> Views | None:
    if (directory / VIEWS).is_file():
        return Views.read(directory / VIEWS)
    path = directory / MODEL
    if not path.is_file():
        return None
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise SettingError(f"{path} is damaged ({error}): restore it.") from error
    return Views(states={best: state}, levels={}, ladder=recipe.method.levels_in_ladder, buffers={})


def save_models(directory: Path, result: Result) -> dict[str, str]:
    """Write the final models; returns the checksums of the files by name."""
    assert result.views is not None
    save_model(directory / MODEL, result.model)
    several = len(result.views.names) > 1
    if several:
        result.views.save(directory / VIEWS)
    return {name: digest_file(directory / name) for name in (MODEL, *([VIEWS] if several else []))}
