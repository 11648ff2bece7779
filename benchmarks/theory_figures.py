"""The figures of docs/theory.md: factors and accuracy over time, patience, noise, single restorations."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from theory_runs import Pair, Study

from fedgmr.reporting.chart import COLOURS, FAINT, INK
from fedgmr.reporting.records import Curve
from fedgmr.reporting.theory import Terms

Events = Mapping[str, Sequence[tuple[float, float, float, float]]]  # by setting; see `events` in theory.py
_TERMS: tuple[tuple[str, str, Callable[[Terms], float | None]], ...] = (
    ("variance factor", COLOURS[1], lambda terms: terms.coverage.variance(terms.energy)),
    ("noise factor", COLOURS[0], lambda terms: terms.coverage.noise(terms.energy)),
)
_ARRIVALS: tuple[tuple[str, str, Callable[[Terms], float | None]], ...] = (
    ("effective updates", COLOURS[2], lambda terms: terms.effective),
    ("effective updates of the whole model", COLOURS[3], lambda terms: terms.effective_whole),
)


def draw(directory: Path, pairs: Sequence[Pair], events: Events) -> None:
    """Draw all figures."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, setting in (("femnist", "FEMNIST, fair"), ("quickstart", "quickstart")):
        own = [pair for pair in pairs if pair.setting == setting]
        if own:
            _draw_times(directory / f"{name}.png", own)
    _draw_patience(directory / "patience.png", [pair for pair in pairs if "patience" in pair.setting])
    _draw_noise(directory / "noise.png", [pair for pair in pairs if pair.long])
    _draw_events(directory / "restorations.png", events)


def _draw_times(path: Path, pairs: Sequence[Pair]) -> None:
    """Accuracy, factors and effective updates over time, with restoration and without it, means over seeds."""
    figure, panels = _panels(3, width=6.4, height=7.2)
    title = f"{pairs[0].setting}: mean of {len(pairs)} seeds; solid with restoration, dotted without"
    panels[0].set_title(title, loc="left", size=10)
    restored, fixed = [pair.restored for pair in pairs], [pair.fixed for pair in pairs]
    for studies, view, colour, style in (
        (restored, "merged", COLOURS[0], "-"),
        (fixed, "merged", COLOURS[0], ":"),
        (fixed, "padded", COLOURS[4], ":"),
    ):
        curve = _averaged(studies, lambda study, view=view: 100 * study.run.history.view(view))  # type: ignore[misc]
        panels[0].plot(curve.seconds, curve.mean, style, color=colour, label=view if style == ":" else None)
    final = [100 * study.accuracy(view) for study in (*restored, *fixed) for view in ("merged", "padded")]
    panels[0].set(ylabel="accuracy (%)", ylim=(np.nanmin(final) - 6, np.nanmax(final) + 1))
    for panel, quantities in ((panels[1], _TERMS), (panels[2], _ARRIVALS)):
        for label, colour, value in quantities:
            for studies, style in ((restored, "-"), (fixed, ":")):
                curve = _averaged(studies, lambda study, value=value: _column(study, value))  # type: ignore[misc]
                panel.plot(curve.seconds, curve.mean, style, color=colour, label=label if style == "-" else None)
    panels[1].set(yscale="log", ylabel="factor")
    panels[2].set(ylabel="updates in a merge", ylim=(0, 10.5), xlabel="virtual time (s)")
    for panel in panels:
        panel.legend(frameon=False, fontsize=9, labelcolor=INK)
    _save(figure, path)


def _draw_patience(path: Path, pairs: Sequence[Pair]) -> None:
    """The mean variance factor of a run against its accuracy."""
    figure, (panel,) = _panels(1, width=5.6, height=3.6)
    for seed, colour in ((0, COLOURS[0]), (1, COLOURS[1])):
        own = [pair for pair in pairs if pair.restored.run.summary["seed"] == seed]
        studies = {pair.setting.removeprefix("CIFAR-10, "): pair.restored for pair in own} | {"never": own[0].fixed}
        x = [study.mean(lambda terms: terms.coverage.variance(terms.energy)) for study in studies.values()]
        y = [100 * study.accuracy() for study in studies.values()]
        panel.plot(x, y, "o-", color=colour, label=f"seed {seed}")
        for name, across, up in zip(studies, x, y, strict=True):
            offset = (4, 6) if seed == 0 else (7, -9)
            panel.annotate(name, (across, up), xytext=offset, textcoords="offset points", size=8, color=INK)
    panel.set(xlabel="variance factor, mean over the run", ylabel="accuracy at the end (%)", xlim=(0.15, 1.3))
    panel.set_title("CIFAR-10: the bound prefers what stands further left", loc="left", size=10)
    panel.legend(frameon=False, fontsize=9)
    _save(figure, path)


def _draw_noise(path: Path, pairs: Sequence[Pair]) -> None:
    """Predicted against observed ratio of noise, of runs without restoration to runs with it."""
    figure, (panel,) = _panels(1, width=5.6, height=3.8)
    for place, setting in enumerate(dict.fromkeys(pair.setting for pair in pairs)):
        own = [pair for pair in pairs if pair.setting == setting]
        x = [(pair.fixed.noise() / pair.restored.noise()) ** 0.5 for pair in own]
        y = [pair.fixed.jitter() / pair.restored.jitter() for pair in own]
        panel.plot(x, y, "o", color=COLOURS[place % len(COLOURS)], label=setting)
    panel.plot((1, 3), (1, 3), color=FAINT, zorder=0)
    panel.set(xlabel="predicted by the noise factor", ylabel="observed between evaluations")
    panel.set_title("Noise without restoration over noise with it", loc="left", size=10)
    panel.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _draw_events(path: Path, events: Events) -> None:
    """Every single restoration: the change of the variance factor against the change of the lead."""
    figure, (panel,) = _panels(1, width=5.6, height=3.8)
    for place, (setting, found) in enumerate(events.items()):
        x = [100 * (np.exp(variance) - 1) for _, variance, _, _ in found]
        y = [100 * gain for *_, gain in found]
        panel.plot(x, y, "o", markersize=4, color=COLOURS[place % len(COLOURS)], label=setting)
    panel.axhline(0, color=FAINT, zorder=0)
    panel.axvline(0, color=FAINT, zorder=0)
    panel.set(xlabel="change of the variance factor (%)", ylabel="change of the lead (points)")
    panel.set_title("Single restorations: the bound predicts a falling line", loc="left", size=10)
    panel.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _averaged(studies: Sequence[Study], column: Callable[[Study], Any]) -> Curve:
    by_run = {id(study.run): study for study in studies}
    return Curve.average([study.run for study in studies], lambda run: column(by_run[id(run)]))


def _column(study: Study, value: Callable[[Terms], float | None]) -> Any:
    return np.array([value(terms) for terms in study.terms], dtype=np.float64)


def _panels(rows: int, *, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, 1, squeeze=False, sharex=True)[:, 0]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9, color=FAINT)
        panel.grid(axis="y", color=FAINT, linewidth=0.6)
        panel.set_axisbelow(True)
    return figure, panels


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Software": None})
