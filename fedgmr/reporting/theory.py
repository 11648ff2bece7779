"""Theory: the terms of the paper's convergence results at every row of a run, from what the run has recorded.

Levels, staleness and numbers of updates are in every row, the ladder and the weight of an old update in the recipe, so
runs of earlier releases have these terms too. What a gradient's share f² inside a sub-model is, the paper leaves open:
where rows have measured it (`shares.update`) that is taken, else the density. Read next: `coverage.py` and
`arrivals.py`, the formulas; `theory_words.py`, what the numbers say; docs/theory.md, how well they predict.
"""

import itertools
import math
import operator
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedgmr.reporting.arrivals import Merge, Participation
from fedgmr.reporting.coverage import Coverage, Energy, increments
from fedgmr.staleness import Constant, Hinge, Polynomial, Staleness

_RULES: dict[str, type[Polynomial | Constant | Hinge]] = {rule.kind: rule for rule in (Polynomial, Constant, Hinge)}
_WINDOW = 100  # rows at most in which every client has sent an update


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms at one row; None where the row does not tell."""

    ladder: tuple[float, ...]
    coverage: Coverage
    energy: Energy  # f² by level
    measured: bool  # whether it was; else it is the density
    effective: float | None  # updates in a merge, by their weights
    effective_whole: float | None  # of them those of the whole model
    participation: Participation | None
    staleness: tuple[float | None, ...]  # Θ by level
    outside: Mapping[str, Sequence[float | None]]  # of the merged model's `weight` and `norm`, by level below the top
    distance: float | None  # between padded view and merged model

    @property
    def stale_drift(self) -> float | None:
        """Σ |C_g| / c*_g · f²(g) · Θ_g: the drift of updates that started from old models."""
        parts = zip(self.coverage.groups, self.coverage.covered, self.energy, self.staleness, strict=True)
        known = [count / held * share * age for count, held, share, age in parts if count and age is not None]
        return math.fsum(known) if known else None

    @property
    def skew(self) -> float | None:
        """V_m over all coordinates, each increment by its share of a gradient."""
        if self.participation is None:
            return None
        pairs = zip(increments(self.energy), self.participation.skew, strict=True)
        return math.fsum(share * skew for share, skew in pairs if skew is not None)

    def numbers(self) -> dict[str, float]:
        """By name, all terms that the row tells."""
        sent = self.participation
        found: dict[str, float | None] = {
            **_of_coverage(self.coverage, self.ladder, tuple(self.energy)),
            "effective updates": self.effective,
            "effective updates of the whole model": self.effective_whole,
            "mean participation": None if sent is None else sent.mean[0],
            "participation skew": self.skew,
            "dilution of the slowest": None if sent is None else sent.dilution,
            "stale drift factor": self.stale_drift,
            "distance of padded and merged": self.distance,
        }
        for name, values in self.outside.items():
            found |= zip(_level_names(f"{name} outside", self.ladder), values, strict=True)
        return {name: value for name, value in found.items() if value is not None}


@lru_cache
def _of_coverage(coverage: Coverage, ladder: tuple[float, ...], energy: tuple[float, ...]) -> Mapping[str, float]:
    """The terms that follow from coverage alone, which rarely changes from row to row."""
    held = math.fsum(density * count for density, count in zip(ladder, coverage.groups, strict=True))
    return {
        "least coverage": coverage.least,
        "average density": held / sum(coverage.groups),
        **{f"{name} factor": value for name, value in coverage.factors(energy).items()},
        "noise factor of the padded view": coverage.padded_noise(energy),
        "untrained share": coverage.untrained(energy),
        **dict(zip(_level_names("coverage of", ladder), coverage.covered, strict=False)),
    }


class Theory:
    """Follows the rows of one run, in their order."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        """`recipe` is the resolved recipe as plain data."""
        method = _section(recipe, "method")
        ladder = method.get("ladder")
        self._ladder = tuple(map(float, ladder)) if isinstance(ladder, list) else ()
        self._rule = _rule(_section(method, "staleness"))
        self._buffered = _section(method, "buffer").get("keep", True) and (
            _section(method, "aggregation").get("over", "buffer") == "buffer"
        )
        if _section(method, "buffer").get("aging", True) is False:
            self._rule = None  # no row says how old an update was when it came
        self._weights: dict[int, float] = {}  # by staleness
        self._levels: Sequence[int] = ()
        self._coverage = Coverage(groups=())
        self._energy: Energy | None = None  # as it was measured last
        self._window: deque[Mapping[str, Any]] = deque(maxlen=_WINDOW)

    def add(self, row: Mapping[str, Any]) -> Terms | None:
        """The terms of the next row; None where recipe and row do not fit together."""
        levels: Sequence[int] = row["level"]
        if not self._window:
            self._ladder = _held_ladder(self._ladder, levels, row["density"])
        self._advance(row)
        count = len(self._ladder)
        if levels != self._levels:
            if not levels or not all(level in range(count) for level in levels):
                return None
            self._levels, self._coverage = levels, Coverage.of(levels, count)
        merge, known = self._merge(row), self._rule is not None
        shares = row.get("shares", {})
        if (found := self._inside(shares.get("update", {}))) is not None:
            self._energy = (*found, 1.0)
        return Terms(
            ladder=self._ladder,
            coverage=self._coverage,
            energy=self._energy or self._ladder,
            measured=self._energy is not None,
            effective=merge.effective() if known else None,
            effective_whole=merge.effective(count - 1) if known else None,
            participation=Participation.of(self._sent(row), levels, count),
            staleness=merge.staleness,
            outside={name: self._outside(shares[name]) for name in ("weight", "norm") if name in shares},
            distance=row.get("views", {}).get("padded", {}).get("distance"),
        )

    def _advance(self, row: Mapping[str, Any]) -> None:
        """Begin the window as late as possible, so that everybody has sent an update in it."""
        self._window.append({"tick": row["tick"], "updates": row["updates"]})
        while len(self._window) > 2 and all(map(operator.gt, row["updates"], self._window[1]["updates"])):
            self._window.popleft()

    def _sent(self, row: Mapping[str, Any]) -> list[int]:
        """Each client's updates in the window."""
        return [now - then for now, then in zip(row["updates"], self._window[0]["updates"], strict=True)]

    def _merge(self, row: Mapping[str, Any]) -> Merge:
        """The updates of a merge: those in the buffer; over arrivals, those of an average merge of the window."""
        ticks, sent = row["tick"] - self._window[0]["tick"], self._sent(row)
        updates = []
        for level, age, number in zip(row["level"], row["staleness"], sent, strict=True):
            if age is not None:
                share = 1.0 if self._buffered else min(1.0, number / ticks) if ticks else 0.0
                updates.append((level, age, self._weight(age), share))
        return Merge.of(updates, len(self._ladder))

    def _weight(self, age: int) -> float:
        if age not in self._weights:
            self._weights[age] = self._rule.weight(age) if self._rule is not None else 1.0
        return self._weights[age]

    def _inside(self, shares: Mapping[str, float | None]) -> list[float] | None:
        """A measured share by level below the top; None where one is missing."""
        found = [shares.get(name) for name in _level_names("", self._ladder)]
        known = [share for share in found if share is not None]
        return known if known and len(known) == len(found) else None

    def _outside(self, shares: Mapping[str, float | None]) -> list[float | None]:
        found = [shares.get(name) for name in _level_names("", self._ladder)]
        return [None if share is None else 1.0 - share for share in found]


def theory_of(rows: Iterable[Mapping[str, Any]], recipe: Mapping[str, Any]) -> list[Terms | None]:
    """The terms of every row of a run."""
    theory = Theory(recipe)
    return [theory.add(row) for row in rows]


@lru_cache
def _level_names(prefix: str, ladder: tuple[float, ...]) -> tuple[str, ...]:
    """The levels below the top by their densities, as rows name them, after a prefix."""
    return tuple(f"{prefix} level {density:g}".strip() for density in ladder[:-1])


def _held_ladder(ladder: tuple[float, ...], levels: Sequence[int], densities: Sequence[float]) -> tuple[float, ...]:
    """The ladder of the recipe, or where clients have other densities (a method without sub-models) theirs."""
    if not all(isinstance(level, int) for level in levels):
        return ()
    held = dict(zip(levels, densities, strict=True))
    if not all(level in range(len(ladder)) and ladder[level] == density for level, density in held.items()):
        ladder = tuple(held[level] for level in sorted(held))
    steps = itertools.pairwise((0.0, *ladder, math.nextafter(1.0, 2.0)))
    return ladder if all(below < above for below, above in steps) else ()


def _rule(settings: Mapping[str, Any]) -> Staleness | None:
    """The staleness rule of a recipe; None where it is somebody's own."""
    given = dict(settings)
    rule = _RULES.get(given.pop("kind", ""))
    try:
        return None if rule is None else rule(**given)
    except TypeError:  # a setting that this release does not know
        return None


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}
