"""Views: the models of one run that are tested and can be handed out.

`merged` is the global model. `padded` is the mean of the clients' latest updates, zero where a client holds nothing;
with sub-models it is often the better one, because it leans on the coordinates that many clients train. `level D` is
the sub-model of density D. Which one is best is decided on validation samples, never on the test set. Read next:
`progress.py`, which records them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedgmr.experiments.checkpoint import copied_to_host
from fedgmr.files import write_atomic
from fedgmr.recipe import Recipe
from fedgmr.server.server import Server
from fedgmr.settings.refusals import SettingError, suggestion
from fedgmr.tasks.metrics import Metric
from fedgmr.training.evaluation.evaluator import Evaluator

MERGED, PADDED = "merged", "padded"
_LAST = 10  # evaluations over which views are compared
_LEVELS = "levels of "  # names of the level map's tensors in a file


def level_name(density: float) -> str:
    """The name of the view that is a level's model; the whole model is the merged one."""
    return MERGED if density == 1 else f"level {density:g}"


def level_names(ladder: Sequence[float]) -> list[str]:
    """The names of the views of all levels that are sub-models."""
    return [level_name(density) for density in ladder if density < 1]


def views_due(server: Server, recipe: Recipe, number: int, seconds: float) -> list[str]:
    """The views that evaluation `number` of a run tests, at this time; all of them in the last ten evaluations."""
    settings = recipe.evaluation
    if not level_names(server.ladder) or not server.buffer:  # nobody has a sub-model, or no update is there
        return [MERGED]
    last, due = _among_last(recipe, seconds), [MERGED]
    if "padded" in settings.views and (last or number % settings.padded_every == 0):
        due.append(PADDED)
    if "levels" in settings.views and (last or number % settings.levels_every == 0):
        due += level_names(server.ladder)
    return due


def _among_last(recipe: Recipe, seconds: float) -> bool:
    assert recipe.evaluation.every_seconds is not None, "resolved before a run"
    return seconds > recipe.seconds - _LAST * recipe.evaluation.every_seconds


def without_early_tests(row: Mapping[str, Any], number: int, recipe: Recipe) -> dict[str, Any]:
    """Row `number` of a shorter run as this recipe's run has it: without the tests that are not due there yet."""
    settings, seconds = recipe.evaluation, row["seconds"]
    kept = dict(row)
    if not _among_last(recipe, seconds) and "views" in row:
        every = {PADDED: settings.padded_every}
        kept["views"] = {
            name: view for name, view in row["views"].items() if number % every.get(name, settings.levels_every) == 0
        }
    if seconds < recipe.seconds and settings.clients and number % settings.clients:
        kept.pop("clients", None)
    return {name: value for name, value in kept.items() if name != "views" or value}


def views_per_evaluation(recipe: Recipe) -> float:
    """The number of models that an evaluation tests on average, before the last ten."""
    settings, below = recipe.evaluation, len(level_names(recipe.method.levels_in_ladder))
    if not below:
        return 1.0
    levels = below / settings.levels_every if "levels" in settings.views else 0.0
    return 1.0 + levels + (1.0 / settings.padded_every if "padded" in settings.views else 0.0)


def view_of(server: Server, name: str) -> tuple[Tensor, Tensor]:
    """The flat model of a view, and the buffers that come with it."""
    if name == MERGED:
        return server.model, _buffers(server, len(server.ladder) - 1)
    if name == PADDED:
        padded = server.padded()
        assert padded is not None, "it is due only where an update is there"
        return padded
    level = [level_name(density) for density in server.ladder].index(name)
    return server.sub_model(level), _buffers(server, level)


def _buffers(server: Server, level: int) -> Tensor:
    """The statistics that fit a level best among those that clients have sent.

    Where they are kept per width, these are that width's. Where clients rebuild them, those of the clients at this
    level, or for the whole model at the highest level there is.
    """
    size = server.layout.buffer_size
    if len(server.buffers) > size:
        return server.buffers[level * size : (level + 1) * size]
    held = [server.buffer[client] for client in sorted(server.buffer)]
    if server.validate is not None or not size or len(server.ladder) == 1 or not held:
        return server.buffers
    if level == len(server.ladder) - 1:
        level = max(c.level for c in held)
    fitting = [c.buffers for c in held if c.level == level]
    return torch.stack(fitting).mean(0) if fitting else server.buffers


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By view, its validation scores in the last ten evaluations, NaN where one was not finite.

    Only those evaluations count that tested what the last one did, so that no view is compared by others than another:
    nobody has a sub-model in the first one, and the last ones of a stopped run do not test every view.
    """
    scores: dict[str, list[float]] = {}
    for row in rows[-_LAST:]:
        if row.get("views", {}).keys() == rows[-1].get("views", {}).keys():
            for name, measured in ((MERGED, row), *row.get("views", {}).items()):
                if "validation" in measured:
                    score = measured["validation"]
                    scores.setdefault(name, []).append(math.nan if score is None else score)
    return scores


def best_view(scores: Mapping[str, Sequence[float]], metric: Metric, samples: int) -> str:
    """The best view by its mean score, in validations on so many samples; the merged one where nothing was compared.

    Another than the merged one must have been finite all the time, and better by more than a standard error of the
    difference of two shares, or for metrics that are no shares of the mean of the differences: with few samples the
    best of six would be best by luck.
    """
    if MERGED not in scores:
        return MERGED
    means = {name: statistics.fmean(values) for name, values in scores.items()}
    better = {name: metric.score(mean - means[MERGED]) for name, mean in means.items()}
    best = max(better, key=lambda name: better[name] if math.isfinite(better[name]) else -math.inf)
    if not better[best] > 0:
        return MERGED
    both = (means[best], means[MERGED])
    if metric.share and all(0 <= share <= 1 for share in both):
        error = math.sqrt(sum(share * (1 - share) for share in both) / samples)
    else:
        differences = [one - merged for one, merged in zip(scores[best], scores[MERGED], strict=True)]
        error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return best if better[best] > error else MERGED


@dataclass(frozen=True, kw_only=True, eq=False)
class Views:
    """The final models of a run by name; a level's is cut out of the merged one when it is asked for."""

    states: Mapping[str, Mapping[str, Tensor]]  # of merged and padded: every parameter and buffer by name
    levels: Mapping[str, Tensor]  # by parameter: the level of every entry
    ladder: tuple[float, ...]
    buffers: Mapping[str, Mapping[str, Tensor]]  # by the name of a level's view: its buffers

    @classmethod
    def of(cls, server: Server, evaluator: Evaluator) -> "Views":
        """Take the views of a server as it is now, with the statistics they are tested with."""
        below = level_names(server.ladder)
        names = [MERGED, PADDED] if below and server.buffer else [MERGED]
        states = {name: evaluator.state(*view_of(server, name)) for name in names}
        levels: dict[str, Tensor] = {}
        buffers: dict[str, Mapping[str, Tensor]] = {}
        if below:
            parts = zip(server.layout.parameters, server.layout.views(server.levels.levels), strict=True)
            own = {place.name: part for place, part in parts}
            first: dict[int, str] = {}  # a tied parameter has several names
            for name, parameter in evaluator.module.named_parameters(remove_duplicate=False):
                if (known := first.setdefault(id(parameter), name)) in own:
                    levels[name] = own[known]
            for name in below if server.layout.buffers else ():
                state = evaluator.state(*view_of(server, name))
                kept = {place.name for place in server.layout.buffers}
                buffers[name] = {key: tensor for key, tensor in state.items() if key in kept}
        return cls(states=states, levels=levels, ladder=tuple(server.ladder), buffers=buffers)

    @property
    def names(self) -> list[str]:
        """The names of all views."""
        return [*self.states, *(level_names(self.ladder) if self.levels else ())]

    def state(self, name: str) -> dict[str, Tensor]:
        """Every parameter and buffer of a view by name, as `load_state_dict` takes it."""
        if name in self.states:
            return dict(self.states[name])
        if name not in self.names:
            raise SettingError(f"The view {name!r} is not one of this run: {suggestion(name, self.names)}")
        level = self.names.index(name) - len(self.states)
        merged = self.states[MERGED]
        cut = {key: tensor * (self.levels[key] <= level) for key, tensor in merged.items() if key in self.levels}
        return {**merged, **cut, **self.buffers.get(name, {})}

    def save(self, path: Path) -> None:
        """Write all views into one file."""
        states = (*self.states.items(), *self.buffers.items())
        tensors = {f"{name}: {key}": tensor for name, state in states for key, tensor in state.items()}
        tensors = copied_to_host(tensors | {f"{_LEVELS}{key}": levels for key, levels in self.levels.items()})
        metadata = {"ladder": " ".join(map(repr, self.ladder))}
        write_atomic(path, lambda draft: save_file(tensors, draft, metadata))

    @classmethod
    def read(cls, path: Path) -> "Views":
        """Read a file that `save` has written."""
        if not path.is_file():
            raise SettingError(f"{path.parent} has no {path.name}: export views of a finished run.")
        states: dict[str, dict[str, Tensor]] = {}
        levels: dict[str, Tensor] = {}
        try:
            with safe_open(path, "pt") as file:
                ladder = tuple(float(word) for word in file.metadata()["ladder"].split())
                for key in file.keys():  # noqa: SIM118 - not a mapping
                    if key.startswith(_LEVELS):
                        levels[key.removeprefix(_LEVELS)] = file.get_tensor(key)
                    else:
                        name, _, tensor = key.partition(": ")
                        states.setdefault(name, {})[tensor] = file.get_tensor(key)
        except (SafetensorError, KeyError, ValueError) as error:
            raise SettingError(f"{path} is damaged ({error}): run again.") from error
        whole = {name: states.pop(name) for name in (MERGED, PADDED) if name in states}
        return cls(states=whole, levels=levels, ladder=ladder, buffers=states)
