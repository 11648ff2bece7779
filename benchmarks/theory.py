"""Do the terms of the convergence bound predict when restoration pays? `python benchmarks/theory.py QUICKSTART`.

Reads kept runs (`results/`) and a directory of `fedgmr compare quickstart --methods fedgmr,fedgmr_without_restoration
--seeds 5 output=QUICKSTART`, and prints the tables of docs/theory.md; `--figures DIR` draws its figures. A run with
restoration is paired with the one without it of the same setting and seed.
"""

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tables import Row, markdown
from theory_figures import draw
from theory_runs import Pair, Study, kept_pairs, quickstart_pairs

from fedgmr.reporting.records import Run, read_run

ROOT = Path(__file__).parents[1]
METHODS = {"CIFAR-10": "cifar10-[!r]*-s0-*", "FEMNIST, fair": "fair-femnist-*-s0-*"}
HORIZON = 16  # rows before and after a restoration; of short runs a tenth


def outcome(pair: Pair) -> Row:
    """Who is ahead at the end, and what the factors were."""
    ours, theirs = pair.restored, pair.fixed
    return {
        "setting": pair.setting,
        "seed": ours.run.summary["seed"],
        "merged, with %": _percent(ours.accuracy()),
        "without %": _percent(theirs.accuracy()),
        "padded, without %": _percent(theirs.accuracy("padded")),
        "loss, with": f"{ours.loss():.4f}",
        "loss, without": f"{theirs.loss():.4f}",
        "mean variance factor, with": f"{ours.mean(lambda t: t.coverage.variance(t.energy)):.3f}",
        "mean variance factor, without": f"{theirs.mean(lambda t: t.coverage.variance(t.energy)):.3f}",
        "stale drift at the end, with": f"{ours.terms[-1].stale_drift or math.nan:.0f}",
    }


def noise_row(pair: Pair) -> Row:
    """Predicted against observed ratios of noise: without restoration, and in the padded view, against with it."""
    ours, theirs = pair.restored, pair.fixed
    padded = theirs.has("padded")
    return {
        "setting": pair.setting,
        "seed": ours.run.summary["seed"],
        "f²": "measured" if ours.terms[-1].measured else "density",
        "merged, predicted": f"{math.sqrt(theirs.noise() / ours.noise()):.2f}",
        "merged, observed": f"{theirs.jitter() / ours.jitter():.2f}",
        "padded, predicted": f"{math.sqrt(theirs.noise('padded') / ours.noise()):.2f}",
        "padded, observed": f"{theirs.jitter('padded') / ours.jitter():.2f}" if padded else "",
    }


def events(pair: Pair) -> list[tuple[float, float, float, float]]:
    """At every restoration: the change of the logarithms of drift, variance and noise factor, and of the lead."""
    rows, terms, lead, found = pair.restored.run.history, pair.restored.terms, pair.lead, []
    horizon = min(HORIZON, len(terms) // 10)
    for place in range(horizon, len(terms) - horizon):
        if rows[place]["level"] == rows[place - 1]["level"]:
            continue
        energy = terms[place - 1].energy
        before, after = (terms[at].coverage.factors(energy) for at in (place - 1, place))
        drift, variance, noise = (math.log(after[name] / before[name]) for name in before)
        gain = float(lead[place : place + horizon].mean() - lead[place - horizon : place].mean())
        found.append((drift, variance, noise, gain))
    return found


def event_row(setting: str, found: Sequence[tuple[float, float, float, float]]) -> Row:
    """How often a restoration paid, how often the factors said so, and whether larger changes paid more."""
    drift, variance, noise, gain = map(np.array, zip(*found, strict=True))
    return {
        "setting": setting,
        "restorations": len(found),
        "lead grows %": _percent(float((gain > 0).mean()), 0),
        "drift factor falls %": _percent(float((drift < 0).mean()), 0),
        "variance factor falls %": _percent(float((variance < 0).mean()), 0),
        **{
            f"rank correlation, {name}": f"{rank_correlation(-values, gain):+.2f}"
            for name, values in (("drift", drift), ("variance", variance), ("noise", noise))
        },
    }


def method_rows(results: Path) -> Iterator[Row]:
    """Methods in one setting, in the order of their accuracy."""
    for task, pattern in METHODS.items():
        studies = [Study(run=read_run(path)) for path in results.glob(pattern)]
        for study in sorted(studies, key=lambda each: -each.accuracy()):
            yield {
                "task": task,
                "method": _title(study.run),
                "accuracy %": _percent(study.accuracy()),
                "drift": f"{study.mean(lambda t: t.coverage.drift(t.energy)):.2f}",
                "variance": f"{study.mean(lambda t: t.coverage.variance(t.energy)):.2f}",
                "noise": f"{study.mean(lambda t: t.coverage.noise(t.energy)):.2f}",
                "effective updates": f"{study.mean(lambda t: t.effective):.1f}",
                "stale drift": f"{study.mean(lambda t: t.stale_drift):.0f}",
                "ticks": int(study.run.history.tick[-1]),
            }


def bias_rows(results: Path) -> Iterator[Row]:
    """By method, what unlike data costs: samples dealt IID against by Dirichlet, paper's protocol, FEMNIST, High."""
    found: dict[str, dict[str, Study]] = {}
    for path in sorted(results.glob("femnist-*-s0-*")):
        study = Study(run=read_run(path))
        if study.run.summary["fleet"] == "high":
            found.setdefault(study.run.title, {})[study.dealt] = study
    costs = {title: dealt["iid"].accuracy() - dealt["dirichlet"].accuracy() for title, dealt in found.items()}
    for title in sorted(costs, key=lambda each: costs[each]):
        factor = found[title]["dirichlet"].mean(lambda t: t.coverage.drift(t.energy))
        yield {"method": title, "bias factor": f"{factor:.2f}", "IID minus non-IID, points": _percent(costs[title])}


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's; equal values share their mean rank."""
    ranks = []
    for values in (one, other):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ranks.append(((ends + ends - counts - 1) / 2)[place])
    return float(np.corrcoef(*ranks)[0, 1])


def _title(run: Run) -> str:
    patience = [line.split()[-1] for line in run.recipe_text.splitlines() if line.strip().startswith("patience:")]
    return f"{run.title}, patience {patience[0]}" if run.title == "FedGMR" and patience else run.title


def _percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}" if math.isfinite(value) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quickstart", type=Path, metavar="QUICKSTART")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="draw the figures into this directory")
    arguments = parser.parse_args()
    pairs = [*quickstart_pairs(arguments.quickstart), *kept_pairs(arguments.results)]
    print("Outcome\n\n" + markdown([outcome(pair) for pair in pairs]))
    print("\nNoise\n\n" + markdown([noise_row(pair) for pair in pairs if pair.long]))
    settings = {setting: list(group) for setting, group in itertools.groupby(pairs, key=lambda pair: pair.setting)}
    found = {setting: [event for pair in group for event in events(pair)] for setting, group in settings.items()}
    everything = [event for group in found.values() for event in group]
    rows = [event_row(setting, group) for setting, group in found.items() if len(group) > 3]
    print("\nRestorations\n\n" + markdown([*rows, event_row("all", everything)]))
    print("\nMethods\n\n" + markdown(list(method_rows(arguments.results))))
    print("\nUnlike data\n\n" + markdown(list(bias_rows(arguments.results))))
    if arguments.figures:
        draw(arguments.figures, pairs, found)


if __name__ == "__main__":
    main()
