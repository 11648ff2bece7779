"""A model under each method, before any run: groups of channels, levels, widths, parameters and bytes.

`fedgmr.inspect` in Python and `fedgmr inspect` on the command line. Read next: `fedgmr/submodels/channels/plan.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedgmr.experiments.time_model import make_sizes
from fedgmr.fleets.network import NetworkSettings
from fedgmr.methods import Method, named_method
from fedgmr.reporting.quantities import align_table, format_bytes, format_percent
from fedgmr.server import Server
from fedgmr.submodels.channels.follow import follow_channels
from fedgmr.submodels.channels.plan import ChannelPlan
from fedgmr.submodels.layout import Layout
from fedgmr.submodels.rankings import RankingInputs
from fedgmr.submodels.widths import kept_channels, widths_for
from fedgmr.tasks.task import Task, named_task

METHODS = ("fedgmr", "fedavg", "fedasync", "heterofl", "fjord", "fedrolex", "fiarse")
_BAR = 24  # characters of a whole model


@dataclass(frozen=True, kw_only=True)
class LevelSize:
    """One level of a method."""

    density: float
    width: float | None  # None: sub-models are not by width
    parameters: int
    bytes_down: int  # the sub-model's values, and its map where clients cannot work it out
    bytes_up: int
    kept: tuple[int, ...]  # channels of each group; () where sub-models are not by width


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A model, and its sub-models under each method; `str` draws them."""

    name: str
    parameters: int
    groups: tuple[tuple[int, int, tuple[str, ...]], ...]  # channels, the multiple that is kept, tensors with them
    whole: tuple[str, ...]  # layers that keep their full width, and why
    methods: dict[str, tuple[LevelSize, ...]]
    refused: dict[str, str]  # methods that cannot cut this model, and why

    def __str__(self) -> str:
        """Tables and bars for a terminal."""
        lines = [f"{self.name}: {self.parameters:,} parameters, {len(self.groups)} groups of channels", ""]
        by_width = next((levels for levels in self.methods.values() if levels[0].width is not None), ())
        head = ["group", "channels", "whole multiples of", *(f"at {level.density:g}" for level in by_width), "in"]
        rows = [head]
        for number, (channels, multiple, tensors) in enumerate(self.groups):
            kept = [str(level.kept[number]) for level in by_width]
            more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
            rows.append([str(number), str(channels), str(multiple), *kept, ", ".join(tensors[:3]) + more])
        lines += [*_table(rows), *(f"Full width: {sentence}." for sentence in self.whole), ""]
        rows = [["method", "density", "width", "parameters", "share", "down", "up", ""]]
        for method, levels in self.methods.items():
            rows += [self._row(method, level) for level in levels]
        return "\n".join([*lines, *_table(rows), *(f"{name}: {reason}" for name, reason in self.refused.items())])

    def _row(self, method: str, level: LevelSize) -> list[str]:
        share = level.parameters / self.parameters
        width = "" if level.width is None else f"{level.width:.3f}"
        sizes = [f"{level.parameters:,}", format_percent(share), *map(format_bytes, (level.bytes_down, level.bytes_up))]
        return [method, f"{level.density:g}", width, *sizes, "█" * max(1, round(_BAR * share))]


def inspect(
    task: Task | str,
    *,
    methods: Sequence[Method | str] = METHODS,
    seed: int = 0,
    network: NetworkSettings | None = None,
) -> Inspection:
    """Look at a task's model under each method; nothing is trained.

    Args:
        task: a Task, the name of a built-in one, or an import path.
        methods: names or composed Methods.
        seed: decides the initial weights, which rankings by magnitude see.
        network: how bytes are counted; None: as they are on the wire.
    """
    task = named_task(task, {}, seed) if isinstance(task, str) else task
    model, layout = task.initial_model(seed), task.layout()
    plan = follow_channels(model, task.example(2))
    composed = [named_method(method) if isinstance(method, str) else method for method in methods]
    at = RankingInputs(layout=layout, ladder=(1.0,), model=layout.flatten(model), seed=seed, plan=plan)
    levels, refused = dict[str, tuple[LevelSize, ...]](), dict[str, str]()
    for method in composed:
        try:
            levels[method.name] = _levels(method, at, plan, network or NetworkSettings())
        except ValueError as error:
            refused[method.name] = str(error)
    return Inspection(
        name=task.name,
        parameters=layout.size,
        groups=_groups(plan, layout),
        whole=plan.whole,
        methods=levels,
        refused=refused,
    )


def width_remarks(method: Method, server: Server) -> str:
    """Comments for a resolved recipe: the widths that its densities come to, and what is not cut as they say."""
    plan, layout = server.plan, server.layout
    if plan is None or not method.by_width:
        return ""
    widths = widths_for(plan, layout, method.levels_in_ladder, method.widths)
    pairs = zip(widths, server.levels.sizes, strict=True)
    kept = ", ".join(f"{width:.3f} ({format_percent(size / layout.size)})" for width, size in pairs)
    multiples = sorted({group.multiple for group in plan.groups} - {1})
    lines = [
        f"Widths, and their shares of all coordinates: {kept}.",
        *(f"A group norm: channels are kept in whole multiples of {multiple}." for multiple in multiples),
        *(f"Full width at every density: {sentence}." for sentence in plan.whole),
    ]
    return "".join(f"# {line}\n" for line in lines)


def _levels(method: Method, at: RankingInputs, plan: ChannelPlan, network: NetworkSettings) -> tuple[LevelSize, ...]:
    layout, ladder = at.layout, method.levels_in_ladder
    ranked = method.ranking.rank(
        RankingInputs(layout=layout, ladder=ladder, model=at.model, seed=at.seed, plan=at.plan)
    )
    widths = widths_for(plan, layout, ladder, method.widths) if method.by_width else [None] * len(ladder)
    sizes = make_sizes(network, layout, per_width=method.local.per_width)
    return tuple(
        LevelSize(
            density=density,
            width=width,
            parameters=ranked.sizes[level],
            bytes_down=sizes.values(ranked, 0, level) + (0 if ranked.implied else sizes.level_map(ranked, 0, level)),
            bytes_up=sizes.update(ranked, level),
            kept=() if width is None else tuple(len(kept_channels(group, width, 0)) for group in plan.groups),
        )
        for level, (density, width) in enumerate(zip(ladder, widths, strict=True))
    )


def _groups(plan: ChannelPlan, layout: Layout) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
    found, first = [], 0
    for group in plan.groups:
        tensors = tuple(
            place.name
            for place in layout.parameters
            if any(axis is not None and bool((axis == first).any()) for axis in plan.axes[place.name])
        )
        found.append((group.size, group.multiple, tensors))
        first += group.size
    return tuple(found)


def _table(rows: list[list[str]]) -> list[str]:
    """The rows, aligned but for their last column."""
    aligned = align_table([row[:-1] for row in rows], words=1)
    last = [rows[0][-1], "", *(row[-1] for row in rows[1:])]  # a rule is below the header
    return [f"{line}  {cell}".rstrip() for line, cell in zip(aligned, last, strict=True)]
