"""The sub-models of a setting's runs: the accuracy of each level alone, beside the whole and the padded model.

It shows what the further coordinates of a larger sub-model add, or cost where few clients train them. Read next:
`results.py`, the document that has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedgmr.paper.accuracy import accuracy_at_t_star
from fedgmr.paper.kept_runs import ResultRow
from fedgmr.paper.numbers import Paper
from fedgmr.paper.tables import Block, Measure
from fedgmr.reporting.chart import COLOURS, DASHES, Chart
from fedgmr.reporting.quantities import markdown_table

_LEVEL, _WHOLE, _PADDED = "level ", "merged", "padded"  # names of views
_WRITER = Block(title="", cells={})  # writes numbers as tables do
_ABOUT = (
    "The sub-model of each density alone, 1 being the merged model: accuracy at t* in percent, over those of its 20 "
    "evaluations that have tested it. The highest of each line is bold."
)


@dataclass(frozen=True, kw_only=True)
class SubModels:
    """The accuracies of sub-models by title of the method and density, and that of the padded model."""

    levels: Mapping[str, Mapping[float, Measure]]
    padded: Mapping[str, Measure]

    @classmethod
    def of(cls, rows: Sequence[ResultRow], paper: Paper) -> "SubModels":
        """Those of the rows whose runs have all tested sub-models around t*."""
        levels, padded = dict[str, Mapping[float, Measure]](), dict[str, Measure]()
        for row in rows:
            found = _measures(row, paper)
            if any(name.startswith(_LEVEL) for name in found):
                levels[row.title] = dict(sorted((_density(name), m) for name, m in found.items() if name != _PADDED))
                padded |= {row.title: found[_PADDED]} if _PADDED in found else {}
        return cls(levels=levels, padded=padded)

    def lines(self) -> Iterator[str]:
        """The table in Markdown."""
        densities = self._densities
        table = [["method", *(f"{density:g}" for density in densities), _PADDED]]
        for title, levels in self.levels.items():
            measures = [levels.get(density) for density in densities] + [self.padded.get(title)]
            highest = max(m.mean for m in measures if m)
            table.append([title, *(_text(measure, highest) for measure in measures)])
        yield from ("", _ABOUT, "", *markdown_table(table, words=1))

    @property
    def _densities(self) -> list[float]:
        return sorted({density for levels in self.levels.values() for density in levels})

    def figure(self) -> Chart:
        """A line for every method over the densities."""
        chart = Chart("Accuracy of each sub-model alone", 4.0)
        for (title, levels), colour, dashes in zip(self.levels.items(), COLOURS, DASHES, strict=False):
            means, spreads = [m.mean for m in levels.values()], [_spread(m) for m in levels.values()]
            (line, *_) = chart.axes.errorbar(list(levels), means, spreads, color=colour, elinewidth=0.8, capsize=2)
            line.set(linestyle=dashes, linewidth=1.9, marker=".")
            chart.name_line(means[-1], f"{title} {means[-1]:.1f}", colour, dashes)
        chart.axes.set(ylabel="accuracy (%)")
        chart.density_axis(self._densities)
        chart.place_names()
        return chart


def _measures(row: ResultRow, paper: Paper) -> dict[str, Measure]:
    """The accuracy at t* of each view that all runs of the row have tested then."""
    runs, task = [entry.run for entry in row.runs], row.runs[0].setting.task
    found = {name: accuracy_at_t_star(runs, paper, task, name) for name in runs[0].summary.get("views") or ()}
    return {name: measure for name, measure in found.items() if measure is not None}


def _text(measure: Measure | None, highest: float) -> str:
    text = "" if measure is None else _WRITER.compact_text(measure)
    return f"**{text}**" if measure is not None and measure.mean == highest else text


def _density(view: str) -> float:
    return 1.0 if view == _WHOLE else float(view.removeprefix(_LEVEL))


def _spread(measure: Measure) -> float:
    return (measure.seeds_std if measure.seeds_std is not None else measure.std) or 0.0
