"""A model of a finished run as a file that opens without this package.

`state_dict` and `safetensors` hold every parameter and buffer by its name, zero where a sub-model has none, so the
class that was trained loads them. `onnx` and `torch.export` hold the computation as well; a sub-model by width is
physically small there, where that computes the same. Read next: `views.py`, the models of a run.
"""

import io
import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.utils._pytree import tree_map

from fedgmr.experiments.checkpoint import copied_to_host, save_model
from fedgmr.experiments.result import Result
from fedgmr.experiments.views import Views, level_name
from fedgmr.files import write_atomic
from fedgmr.settings.refusals import SettingError
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.channels.slicing import slice_module
from fedgmr.submodels.inputs import Inputs, arguments, outputs_of

_SAMPLES = 2  # in the example that a computation is recorded with; one would fix the size of a batch
_EQUAL = 1e-4  # of the largest output: how far a small network may be from the whole one with zeros
_FOR_ONNX = ("onnx", "onnxscript")


def write_model(result: Result, view: str, to: str, output: Path | None = None) -> Path:
    """Write a view of a finished run in one of `FORMATS`, by default into its directory; returns the file."""
    suffix, write = FORMATS[to]
    path = output or (result.path or Path()) / f"{view.replace(' ', '-')}{suffix}"
    result.final_views.state(view)  # a name that is not one is refused first
    path.parent.mkdir(parents=True, exist_ok=True)
    write(result, view, path)
    return path


def view_of_level(result: Result, density: float) -> str:
    """The name of the view that is the sub-model of a density."""
    ladder = result.final_views.ladder
    if density not in ladder:
        raise SettingError(f"The level {density:g} is not one of this run: give {', '.join(map(str, ladder))}.")
    return level_name(density)


def exported_program(result: Result, view: str) -> torch.export.ExportedProgram:
    """A view as a computation that PyTorch runs without the model's class."""
    task, module = result.made_task, result.module(view)
    inputs = task.inputs(task.test[:_SAMPLES][0])
    if result.recipe.method.by_width and view not in result.final_views.states:
        module = _sliced(result.final_views, view, module, inputs)
    by_place, by_name = arguments(inputs)
    batch = tree_map(lambda _: {0: torch.export.Dim.AUTO}, by_name or by_place)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's own recurrent layers
        program = torch.export.export(module, by_place, by_name, dynamic_shapes=batch)
    given = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in given]
    if any(isinstance(value.shape[0], int) for value in values):
        warnings.warn(f"The model's forward fixes the size of a batch: the file takes {_SAMPLES}.", stacklevel=2)
    return program


@torch.no_grad()
def _sliced(views: Views, view: str, module: nn.Module, inputs: Inputs) -> nn.Module:
    """The module with the channels of a level alone, or as it is where that computes something else."""
    plan = follow_channels(module, inputs)
    level = [level_name(density) for density in views.ladder].index(view)
    kept = torch.zeros(sum(group.size for group in plan.groups) + 1, dtype=torch.bool)
    kept[-1] = True  # stands for all that is no channel
    for name, levels in views.levels.items():
        for dim, axis in enumerate(plan.axes.get(name, ())):
            if axis is not None:
                kept[axis[(levels <= level).movedim(dim, 0).reshape(levels.shape[dim], -1).any(1)]] = True
    small = slice_module(module, plan, kept)
    wanted, found = outputs_of(module, inputs), outputs_of(small, inputs)
    if bool((found - wanted).abs().max() <= _EQUAL * wanted.abs().max()):
        return small
    warnings.warn(
        f"The view {view!r} is written at full width, with zeros: a layer (a layer norm, a group norm, attention) "
        "computes something else on fewer channels, and the reported metrics are those with zeros.",
        stacklevel=3,
    )
    return module


def _write_state(result: Result, view: str, path: Path) -> None:
    state = copied_to_host(result.final_views.state(view))
    write_atomic(path, lambda draft: torch.save(state, draft))


def _write_safetensors(result: Result, view: str, path: Path) -> None:
    save_model(path, result.final_views.state(view))


def _write_program(result: Result, view: str, path: Path) -> None:
    content = io.BytesIO()
    torch.export.save(exported_program(result, view), content)
    write_atomic(path, content.getvalue())


def _write_onnx(result: Result, view: str, path: Path) -> None:
    if missing := [name for name in _FOR_ONNX if find_spec(name) is None]:
        raise SettingError(
            f"--to is 'onnx', for which {' and '.join(missing)} must be installed: give `pip install '.[onnx]'` in a "
            f"checkout, or `pip install {' '.join(_FOR_ONNX)}`."
        )
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # not which packages it could use besides
    program = torch.onnx.export(exported_program(result, view), (), dynamo=True, verbose=False)
    assert program is not None
    write_atomic(path, program.model_proto.SerializeToString())


# By name: the ending of the file, and the function that writes it.
FORMATS: dict[str, tuple[str, Callable[[Result, str, Path], None]]] = {
    "state_dict": (".pt", _write_state),
    "safetensors": (".safetensors", _write_safetensors),
    "onnx": (".onnx", _write_onnx),
    "torch.export": (".pt2", _write_program),
}
