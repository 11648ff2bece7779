"""Reading: how the values of a metric are read. Its name, its unit, whether more is better, the digits for people.

A task's metric is one with a measure (`tasks/metrics.py`). A run records it beside the values, so that tables, figures
and targets follow it (`reporting/`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_SHARE = "%"
_NEAR = 0.05  # a target that nobody has given: so much worse than the best, by its size
_TENTHS = 3  # digits of a share, rounded to a tenth of a percent


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Name, unit, direction and digits of a metric."""

    name: str = "accuracy"
    unit: str = _SHARE  # %: the value is a share, which people read as percent; empty: a plain number
    higher_is_better: bool = True
    digits: int = 2  # after the point, for people

    def __post_init__(self) -> None:
        if not self.name.strip() or not isinstance(self.digits, int) or not 0 <= self.digits <= 10:
            raise ValueError(
                f"The metric {self.name!r} has {self.digits!r} digits: give it a name, and 0 to 10 after the point."
            )

    @classmethod
    def recorded(cls, data: Mapping[str, Any]) -> list["Reading"]:
        """The readings of a summary or of a row of `metrics.jsonl`, the leading one first; else it is an accuracy."""
        found = data.get("readings")
        if found is None:
            return [cls(name=str(data.get("metric") or "accuracy"))]
        try:
            return [cls(**each) for each in found] or [cls()]
        except (TypeError, AttributeError) as error:
            raise ValueError(f"The readings {found!r} are not those of metrics: restore the file.") from error

    @property
    def data(self) -> dict[str, Any]:
        """The reading as a summary has it."""
        return {entry.name: getattr(self, entry.name) for entry in fields(Reading)}

    @property
    def share(self) -> bool:
        """Whether values are shares, 0 to 1."""
        return self.unit == _SHARE

    @property
    def accuracy(self) -> bool:
        """Whether this is an accuracy, which readers take for granted."""
        return self.share and self.higher_is_better and self.digits == Reading.digits and "accuracy" in self.name

    @property
    def factor(self) -> float:
        """What values are multiplied by for people."""
        return 100.0 if self.share else 1.0

    @property
    def label(self) -> str:
        """The metric for a heading or an axis: `accuracy (%)`, `MAE (°C)`, `perplexity`."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def title(self) -> str:
        """The name at the beginning of a sentence."""
        return self.name[:1].upper() + self.name[1:]

    @property
    def column(self) -> str:
        """The name as a column of a file."""
        return "_".join(self.name.split())

    def score(self, value: float) -> float:
        """The value as a number of which more is better."""
        return value if self.higher_is_better else -value

    def number(self, value: float | None, digits: int | None = None) -> str:
        """A value without its unit; `-` where there is none."""
        if value is None or math.isnan(value):
            return "-"
        return f"{self.factor * value:.{self.digits if digits is None else digits}f}"

    def text(self, value: float | None, digits: int | None = None) -> str:
        """A value with its unit: `93.42 %`, `1.250 °C`; `-` where there is none."""
        number = self.number(value, digits)
        return number if number == "-" or not self.unit else f"{number} {self.unit}"

    def brief(self, value: float | None) -> str:
        """A value where there is little room: of a share one digit less."""
        return self.text(value, max(0, self.digits - 1) if self.share else None)

    def target_text(self, target: float) -> str:
        """A target, never rounded to fewer digits than it has: `80.0 %`, `82.25 %`, `1.25`."""
        if self.share:
            percent = f"{100 * target:.10g}"
            return f"{percent}{'' if '.' in percent else '.0'} {self.unit}"
        return f"{target:.10g} {self.unit}".rstrip()

    def check_target(self, target: float, name: str = "target") -> None:
        """Refuse a target that no value of the metric can be."""
        if self.share and not 0 < target <= 1:
            raise ValueError(f"{name} is {target:g}: give the {self.name} as a fraction, such as 0.8 for 80 %.")
        if not math.isfinite(target):
            raise ValueError(f"{name} is {target}: give a value of the metric {self.name}.")

    def near(self, best: float) -> float:
        """A value a little worse than the best: 95 % of an accuracy, 105 % of an error; rounded to what is shown."""
        if not math.isfinite(best) or (self.share and self.higher_is_better and best <= 0):
            return 0.0
        # Rounded away from the best, so that a heading names exactly the number used.
        unit = 10 ** (_TENTHS if self.share else self.digits)
        score = self.score(best) * unit - _NEAR * abs(best) * unit
        return self.score(math.floor(score + 1e-9) / unit)

    @property
    def near_words(self) -> str:
        """How `near` finds its value, in words."""
        share = 1 - _NEAR if self.higher_is_better else 1 + _NEAR
        return f"{100 * share:.0f} % of the best method's {self.name}"
