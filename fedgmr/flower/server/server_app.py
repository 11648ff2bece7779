"""The server's app: the server, loop, records and report of a simulation, with the Flower fleet.

Keys of the run's configuration (`flwr run . -c "..."`):
  recipe     a recipe file (absolute, or inside the app), or the name of one that ships with the package
  overrides  `key=value` words that change it
  output     the run directory; empty: a new one under runs/
  resume     true: go on with the run in `output` from its newest checkpoint; its recipe counts, not the one named
  trust      with resume: packages that this recipe may import, with commas (as FEDGMR_TRUST)
"""

import contextlib
import json
import logging
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgmr.exchange import Diverged
from fedgmr.experiments.assembly import Assembly, as_evaluated, make_server, make_task, resolve, usable_device
from fedgmr.experiments.result import Result
from fedgmr.experiments.run import run_assembly
from fedgmr.experiments.rundir import reopened
from fedgmr.experiments.time_model import round_period
from fedgmr.files import file_name
from fedgmr.fleets.measurement import Meter
from fedgmr.fleets.sizes import WireSizes
from fedgmr.flower.server.clock import Clock
from fedgmr.flower.server.fleet import OVERHEAD, FlowerFleet
from fedgmr.flower.terms import Terms, layout_checksum
from fedgmr.pages.report import write_report
from fedgmr.recipe import Recipe, load_recipe
from fedgmr.reporting.display import Display
from fedgmr.reporting.watcher import Watcher
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.schema import plain
from fedgmr.settings.trust import split_names
from fedgmr.wire import ValueType

_log = logging.getLogger(__name__)


def main(grid: Grid, context: Context) -> None:
    """Run a recipe on the nodes of the grid."""
    _show_log()
    try:
        directory, result = run(grid, context.run_id, context.run_config, Clock())
    except (ValueError, OSError, Diverged, MemoryError, torch.OutOfMemoryError) as error:
        print(f"fedgmr: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        raise
    score = f"{result.reading.name} {result.reading.text(result.final_accuracy)}"
    _log.info("Final %s. Report: %s", score, write_report(directory))
    if problem := result.summary.get("problem"):  # Flower is to call it failed, too
        print(f"fedgmr: {problem}", file=sys.stderr, flush=True)
        raise ValueError(problem)


def run(
    grid: Grid, run_id: int, config: Mapping[str, Any], clock: Clock, watchers: Sequence[Watcher] = ()
) -> tuple[Path, Result]:
    """Run the configured recipe, or resume a run; returns the run directory and the result.

    `watchers` are told how the run goes, as those of `simulate`; an app of your own may give some.
    """
    output, resume = str(config.get("output", "")), bool(config.get("resume", False))
    with contextlib.ExitStack() as held:
        if resume:
            directory = Path(output)
            recipe = held.enter_context(reopened(directory, split_names(str(config.get("trust", "")))))
        else:
            recipe = load_recipe(_recipe_source(str(config.get("recipe", "quickstart"))), _overrides(config))
            directory = Path(output) if output else _new_directory(recipe.name)
        held.enter_context(recipe.execution.own_modes())
        assembly = assemble_deployed(recipe, grid, run_id, clock, directory)
        title = recipe.method.title or recipe.method.name
        try:
            with Display() as display:
                shown = display.begin("", title, recipe.seconds)
                return directory, run_assembly(assembly, directory, [shown, *watchers], resume=resume)
        finally:
            assembly.fleet.close()


def _new_directory(name: str) -> Path:
    return Path("runs") / file_name(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")


def assemble_deployed(
    recipe: Recipe, grid: Grid, run_id: int, clock: Clock, directory: Path | None
) -> Assembly[FlowerFleet]:
    """The objects of a recipe with clients on the grid's nodes."""
    if recipe.evaluation.of_clients:
        key = "clients" if recipe.evaluation.clients else "personal"
        raise SettingError(
            f"evaluation.{key} is {getattr(recipe.evaluation, key)}: a deployed server does not have the samples of "
            "its clients; set it to 0."
        )
    links, wanted = recipe.fleet.resolved_links(), recipe.deployment.min_clients
    if wanted is not None and wanted > len(links):
        raise SettingError(f"deployment.min_clients is {wanted}: the fleet has {len(links)} clients, give no more.")
    made = make_task(recipe)
    recipe = resolve(recipe, made)
    task = as_evaluated(made, recipe).to(usable_device(recipe.device))
    method = recipe.method
    server, evaluator = make_server(recipe, task)
    layout = server.layout
    if layout.dtype != torch.float32:
        raise ValueError(f"The model's type is {layout.dtype}: values travel as float32; use that.")
    per_width = method.local.per_width
    value_type = ValueType(recipe.network.values)
    sizes = WireSizes(buffers=layout.buffer_size, per_width=per_width, value_type=value_type)
    terms = Terms(
        run=run_id,
        recipe=json.dumps(plain(recipe)),
        layout=layout_checksum(layout),
        ims=method.ims,
        per_width=per_width,
        value_type=value_type,
        classes=0 if server.labels is None else server.labels.owned.shape[1],
    )
    fleet = FlowerFleet(
        grid,
        clock,
        clients=len(links),
        terms=terms,
        settings=recipe.deployment,
        meter=Meter(OVERHEAD, sizes, period=round_period(recipe, layout) if recipe.fleet.measured else None),
        directory=directory,
        probe=sizes.values(server.levels, 0, 0) if recipe.fleet.measured else 0,
    )
    return Assembly(recipe=recipe, task=task, server=server, fleet=fleet, evaluator=evaluator)


def _show_log() -> None:
    """Show our own log; the root logger would also show every request, each of which makes another."""
    ours = logging.getLogger("fedgmr")
    if not ours.handlers:
        ours.addHandler(logging.StreamHandler(sys.stderr))
        ours.setLevel(logging.INFO)
        ours.propagate = False


def _overrides(config: Mapping[str, Any]) -> list[str]:
    words = shlex.split(str(config.get("overrides", "")))
    wrong = [word for word in words if "=" not in word]
    if wrong:
        raise SettingError(f"overrides has {wrong[0]!r}: give words of the form key=value.")
    return words


def _recipe_source(name: str) -> str:
    """A recipe inside the app lies below one of the folders that modules are found in."""
    if not Path(name).is_absolute():
        for folder in sys.path:
            if Path(name).suffix and (Path(folder) / name).is_file():
                return str(Path(folder) / name)
    return name


app = ServerApp()
app.main()(main)
