"""What the kernels of a recipe are compiled to, without a GPU: `python benchmarks/compiled.py RECIPE [KEY=VALUE ...]`.

The stacked executor goes through its trial and its first steps with nothing launched, for a card of the given compute
capability. NVIDIA's assembler then says what registers a program takes, what it spills to memory for want of them, and
where it lets the matrix instructions wait for each other. That, and more than 512 spilled bytes, is past the limit.
Triton comes with the CUDA builds of PyTorch; elsewhere `make test-kernels` installs it: PYTHONPATH=.venv/triton.
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from environment import header
from tables import Row, markdown

from fedgmr.experiments.assembly import assemble, deal, make_task, make_training, resolve
from fedgmr.recipe import load_recipe
from fedgmr.training.choice import LocalTraining
from fedgmr.training.execution import TRITON
from fedgmr.training.folded.net import FoldedNet
from fedgmr.training.stacked.executor import StackedExecutor
from fedgmr.training.stacked.net import StackedNet

_MOST_SPILLED = 512
_REMARK = re.compile(r"\((C\d{4})\)")
_CLIENTS = 3


@contextmanager
def nothing_launched(capability: int) -> Iterator[list[tuple[str, Any]]]:
    """Within it kernels are compiled for a card that is not there, and not launched; their names, and what became."""
    from triton import JITFunction
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target, found, known = GPUTarget("cuda", capability, 32), list[tuple[str, Any]](), set[str]()

    def instead(function: Any, grid: object) -> Callable[..., None]:
        def launch(*given: Any, **options: Any) -> None:
            kernel = function.warmup(*given, grid=grid, **options)
            if kernel.hash not in known:
                known.add(kernel.hash)
                found.append((function.__name__, kernel))

        return launch

    card = SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda _: 0, get_current_target=lambda: target
    )
    # There is no driver to go back to where there is no card.
    with patch.object(driver, "_active", card), patch.object(JITFunction, "__getitem__", instead):
        yield found


def go_through(words: Sequence[str]) -> None:
    """The trial and the first steps of a recipe's stacked executor."""
    recipe = load_recipe(words[0], [*words[1:], "device=cpu", "execution.executor=sequential"])
    task = make_task(recipe)
    run = assemble(resolve(recipe, task), task)
    parts, held_out = deal(run.recipe, task, len(run.server.profiles))
    training = make_training(run.recipe, task, run.server.layout, run.server.plan, parts, held_out)
    stands_alone = FoldedNet.stands_alone
    # Nothing is computed, so what the trial finds means nothing.
    with patch.object(FoldedNet, "stands_alone", lambda *given: stands_alone(*given) or True):
        executor = stacked(training)
    executor.train(run.server.tasks(range(min(_CLIENTS, len(run.server.profiles))), 0.0))


def stacked(training: LocalTraining) -> StackedExecutor:
    """The executor that `auto` takes on a GPU, for the host."""
    work, optimizer = training.work, training.settings.optimizer
    given = work, work.task.initial_model(work.seed), training.layout, optimizer
    net = StackedNet.of(*given, most=_CLIENTS) or FoldedNet.of(*given, most=_CLIENTS, small=training.small())
    return training.stacked(net)


def row_of(name: str, kernel: Any, capability: int) -> Row:
    """What the assembler says of a kernel."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    code, options = kernel.asm["ptx"], kernel.metadata
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(code)
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={sm_arch_from_capability(capability)}", str(file)]
        said = subprocess.run([*command, "-o", f"{file}.out"], capture_output=True, text=True, check=True).stderr
    newer, older = code.count("wgmma.mma_async"), code.count("mma.sync")
    return {
        "kernel": name,
        "warps": options.num_warps,
        "registers": int(re.findall(r"Used (\d+) registers", said)[0]),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill stores", said))),
        "shared": options.shared,
        "matrix instructions": f"{newer} wgmma" if newer else f"{older} mma" if older else "",
        "remarks": ", ".join(sorted(set(_REMARK.findall(said)))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, default=90, help="90: H100, H200; 80: A100")
    parser.add_argument("words", nargs="+", metavar="RECIPE [key=value ...]", help="as for `fedgmr run`")
    given = parser.parse_args()
    if not TRITON:
        parser.error("Triton is missing: `make test-kernels` installs it, then set PYTHONPATH=.venv/triton.")
    print(header(), "\n")
    with nothing_launched(given.capability) as found:
        go_through(given.words)
    rows = [row_of(*each, given.capability) for each in found]
    print(markdown(rows), "\n")
    past = [row for row in rows if row["remarks"] or int(str(row["spilled"])) > _MOST_SPILLED]
    print(f"{len(rows)} kernels, {len(past)} past the limit")
    return 1 if past else 0


if __name__ == "__main__":
    raise SystemExit(main())
