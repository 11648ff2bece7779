"""Where our ranking of methods differs from the paper's, said plainly, pair by pair."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot

from fedgmr.paper.tables import Measure


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A method with our number and the paper's."""

    key: str
    title: str
    ours: Measure
    paper: Measure


def ranking_lines(ranked: Sequence[Ranked]) -> list[str]:
    """Both orders and every pair that stands the other way round, in Markdown; nothing for a single method."""
    if len(ranked) < 2:
        return []
    orders = {
        "Ours": sorted(ranked, key=lambda entry: -entry.ours.mean),
        "Paper": sorted(ranked, key=lambda entry: -entry.paper.mean),
    }
    lines = [f"- {name}: {' > '.join(entry.title for entry in order)}" for name, order in orders.items()]
    swapped = [_sentence(first, second) for first, second in combinations(orders["Ours"], 2) if _swapped(first, second)]
    verdict = (
        f"The ranking differs from the paper's in {len(swapped)} of {len(ranked) * (len(ranked) - 1) // 2} pairs:"
        if swapped
        else "The ranking is the paper's."
    )
    return ["", verdict, "", *lines, *(f"- {sentence}" for sentence in swapped)]


def _swapped(better: Ranked, worse: Ranked) -> bool:
    return better.paper.mean < worse.paper.mean


def _sentence(better: Ranked, worse: Ranked) -> str:
    here = _gap(better.ours, worse.ours)
    there = _gap(worse.paper, better.paper)
    return (
        f"{better.title} is above {worse.title} here ({better.ours.mean:.2f} and {worse.ours.mean:.2f}, {here}) and "
        f"below it in the paper ({better.paper.mean:.2f} and {worse.paper.mean:.2f}, {there})."
    )


def _gap(better: Measure, worse: Measure) -> str:
    """Whether a lead is more than the two deviations together."""
    deviations = [measure.seeds_std if measure.seeds_std is not None else measure.std for measure in (better, worse)]
    noise = hypot(*(deviation or 0.0 for deviation in deviations))
    return "within the deviations" if better.mean - worse.mean <= noise else "more than the deviations"
