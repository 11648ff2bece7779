"""fedgmr beside a plain PyTorch loop, pfl-research and Flower's simulation runtime; `simulators.md` has the figures.

    python benchmarks/simulators.py --pfl VENV/bin/python --flower VENV/bin/python [--csv PATH]

Every simulator runs in a process of its own, with its own interpreter, and they take turns of some rounds. First comes
the gate: a small federation of the same kind (float64, no dropout, three rounds), in which all must reach the same
global weights from the same weights on the same samples in the same order. Then every simulator is timed in each of its
settings, and the best one is compared. The status is 1 if a simulator fails or a limit is not met. The programs of the
processes are in `simulators/`.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from contenders import SCRIPTS, Contender, Entry, Failed, gate
from environment import header
from tables import Row, markdown, write_csv


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The timed work, and the number of rounds in a turn."""

    title: str
    turn: int
    limits: dict[str, float]  # by opponent: the smallest allowed ratio of its time to fedgmr's


CPU = {
    "cifar10": Workload(
        title="pfl-research's CIFAR-10: 1,000 users, cohort 50, 5 steps of 10, 1.6 M parameters",
        turn=1,
        limits={"bare": 0.95, "pfl": 1.1},
    ),
    "trivial": Workload(
        title="trivial work: 1,000 users, cohort 10, 2 steps of 10, 62 k parameters",
        turn=20,
        limits={"flower": 2.5},
    ),
}
GPU = {
    "cifar10": Workload(title=CPU["cifar10"].title, turn=3, limits={"pfl, 1 process": 5.0, "pfl": 2.0}),
}


def cpu_entries(cores: int) -> list[Entry]:
    """One process with all cores, or one process (Flower: actor) per core; images in the faster layout."""
    whole = ("--threads", str(cores), "--processes", "1", "--layout", "chw")
    split = ("--threads", "1", "--processes", str(cores), "--layout", "hwc")
    return [
        Entry(system="bare", setting=f"{cores} threads", arguments=whole),
        Entry(system="fedgmr", setting=f"sequential, {cores} threads", arguments=whole),
        Entry(system="fedgmr", setting=f"threaded, {cores} threads", arguments=(*whole, "--executor", "threaded")),
        Entry(system="pfl", setting=f"1 process, {cores} threads", arguments=whole),
        Entry(system="pfl", setting=f"{cores} processes", arguments=split),
        Entry(system="flower", setting=f"1 actor, {cores} threads", arguments=whole),
        Entry(system="flower", setting=f"{cores} actors", arguments=split),
    ]


def gpu_entries() -> list[Entry]:
    """All on one GPU."""
    cuda = ("--device", "cuda", "--threads", "1", "--layout", "chw")
    return [
        Entry(system="bare", setting="eager", arguments=cuda),
        Entry(system="fedgmr", setting="sequential", arguments=cuda),
        Entry(system="fedgmr", setting="graphed", arguments=(*cuda, "--executor", "graphed")),
        Entry(system="pfl", setting="1 process", arguments=cuda),
        *(
            Entry(system="pfl", setting=f"{count} processes", arguments=(*cuda, "--processes", str(count)))
            for count in (3, 5, 10)
        ),
    ]


def ratio(slow: Contender, fast: Contender) -> float:
    """The time of the first relative to the second: the median over the turns."""
    return statistics.median(a / b for a, b in zip(slow.walls, fast.walls, strict=True))


def best(contenders: Sequence[Contender], system: str) -> Contender | None:
    """The simulator's fastest setting; `system` may also name a setting after a comma."""
    own = [c for c in contenders if system in (c.entry.system, c.entry.name)]
    return min(own, key=lambda c: statistics.median(c.walls), default=None)


def rows_of(contenders: Sequence[Contender]) -> list[Row]:
    """One row per setting."""
    ours = best(contenders, "fedgmr")
    return [
        {
            "simulator": c.entry.system,
            "setting": c.entry.setting,
            "ms a round, median": f"{1e3 * statistics.median(c.walls):.1f}",
            "least": f"{1e3 * min(c.walls):.1f}",
            "x fedgmr": "" if ours is None else f"{ratio(c, ours):.2f}",
            "least by least": "" if ours is None else f"{min(c.walls) / min(ours.walls):.2f}",
            "start and gate, s": f"{c.to_gate:.1f}",
            "weights differ by": f"{c.difference:.0e}",
        }
        for c in contenders
    ]


def verdicts(contenders: Sequence[Contender], limits: dict[str, float]) -> bool:
    """Print each limit and whether it is met; opponents that did not run are named and do not count."""
    good, ours = True, best(contenders, "fedgmr")
    for system, limit in limits.items():
        theirs = best(contenders, system)
        if ours is None or theirs is None:
            print(f"{system}: not measured")
            continue
        value = ratio(theirs, ours)
        good &= value >= limit
        print(
            f"{theirs.entry.name} takes {value:.2f} x the time of {ours.entry.name}; "
            f"limit {limit:g}: {'met' if value >= limit else 'NOT met'}"
        )
    return good


def measure(
    entries: Sequence[Entry],
    interpreters: dict[str, str],
    plan: Path,
    gate_plan: Path,
    workload: Workload,
    repeats: int,
) -> tuple[list[Contender], bool]:
    """All contenders of one workload after their turns, and whether none failed."""
    started, good = [], True
    try:
        for entry in entries:
            if entry.system in interpreters:
                try:
                    started.append(Contender.start(entry, interpreters[entry.system], plan, gate_plan))
                except Failed as failure:
                    good = False
                    print(failure)
        if not started or started[0].entry.system != "bare":
            raise SystemExit("The plain loop did not run, so there is nothing to compare with.")
        contenders = gate(started)
        for repeat in range(repeats + 1):
            for contender in list(contenders):
                try:
                    contender.take_turn(workload.turn, counts=repeat > 0)
                except Failed as failure:
                    print(failure)
                    contenders.remove(contender)
    finally:
        for contender in started:
            contender.stop()
    return contenders, good and len(contenders) == len(started)


def raw(workload: str, contenders: Sequence[Contender]) -> list[Row]:
    """Every turn."""
    return [
        {
            "workload": workload,
            "simulator": c.entry.system,
            "setting": c.entry.setting,
            "turn": number,
            "rounds": c.rounds,
            "seconds_per_round": wall,
            "processor_seconds_per_round": processor,
            "weights_differ_by": c.difference,
        }
        for c in contenders
        for number, (wall, processor) in enumerate(zip(c.walls, c.processors, strict=True))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfl", metavar="PYTHON", help="interpreter that has pfl; without it pfl is left out")
    parser.add_argument("--flower", metavar="PYTHON", help="interpreter that has flwr[simulation]")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cores", type=int, default=2, help="cores each simulator may use")
    parser.add_argument("--workloads", nargs="+", choices=list(CPU), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each, after one that does not count")
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", help="bare is always among them")
    parser.add_argument("--csv", type=Path, metavar="PATH", help="also write every turn here")
    arguments = parser.parse_args()
    on_cpu = arguments.device == "cpu"
    workloads = CPU if on_cpu else GPU
    entries = cpu_entries(arguments.cores) if on_cpu else gpu_entries()
    given = {"bare": sys.executable, "fedgmr": sys.executable, "pfl": arguments.pfl, "flower": arguments.flower}
    wanted = {*(arguments.only or given), "bare"}
    interpreters = {system: path for system, path in given.items() if path and system in wanted}
    names = [name for name in arguments.workloads or workloads if name in workloads]
    print(header(), *([] if on_cpu else [torch.cuda.get_device_name()]), *versions(interpreters), "", sep="\n")
    good, rows = True, []
    with tempfile.TemporaryDirectory() as folder:
        planned = [f"{name}={(arguments.repeats + 1) * workloads[name].turn}" for name in names]
        layouts = sorted({word for entry in entries for word in entry.arguments if word in ("chw", "hwc")})
        command = [
            sys.executable,
            str(SCRIPTS / "plan.py"),
            f"{folder}/plan",
            "--layouts",
            *layouts,
            "--rounds",
            *planned,
        ]
        subprocess.run(command, check=True)
        for name in names:
            workload = workloads[name]
            print(f"## {workload.title}\n")
            contenders, whole = measure(
                entries,
                interpreters,
                Path(folder) / "plan" / "timed" / name,
                Path(folder) / "plan" / "gate" / name,
                workload,
                arguments.repeats,
            )
            print(markdown(rows_of(contenders)), "\n")
            good &= whole & verdicts(contenders, workload.limits)
            rows += raw(name, contenders)
    if arguments.csv:
        write_csv(arguments.csv, rows)
    return 0 if good else 1


def versions(interpreters: dict[str, str]) -> list[str]:
    """The versions in the other simulators' interpreters."""
    code = "import sys, importlib.metadata as m; print(*(f'{p} {m.version(p)}' for p in sys.argv[1:]), sep=', ')"
    packages = {"pfl": ("pfl", "torch", "numpy"), "flower": ("flwr", "ray", "torch", "numpy")}
    return [
        subprocess.run([path, "-c", code, *packages[system]], capture_output=True, text=True).stdout.strip()
        for system, path in interpreters.items()
        if system in packages
    ]


if __name__ == "__main__":
    sys.exit(main())
