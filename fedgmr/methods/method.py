"""A method is a composition: server rules + a local rule + whether increments are multicast (IMS).

The files beside this one each return a Method; a recipe names one and may override any field, so ablations and
plug-ins are switches. A user's own method is a function that returns a Method, named by import path
"package.module:function".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import SemiAsynchronous
from fedgmr.server.label_aware import LabelAware
from fedgmr.server.restoration import Saturation
from fedgmr.server.rules import ServerRules
from fedgmr.server.staleness import Polynomial
from fedgmr.settings.build import build, imported
from fedgmr.settings.refusals import SettingError, suggestion
from fedgmr.submodels.levels import Ladder
from fedgmr.submodels.rankings import Threshold
from fedgmr.submodels.widths import RollingWindow, WidthPrefix
from fedgmr.training.rules import LocalRule, OrderedDropout, PlainSGD, ThresholdedSGD, WidthSGD


@dataclass(frozen=True, kw_only=True)
class Method(ServerRules):
    """A federated method, complete."""

    name: str
    title: str = field(default="", metadata={"help": "for tables and legends; empty: from the name"})
    local: LocalRule = field(
        default=PlainSGD(),
        metadata={
            "kinds": (PlainSGD, WidthSGD, OrderedDropout, ThresholdedSGD),
            "help": "what a client does with a mini-batch",
        },
    )
    ims: bool = field(default=False, metadata={"help": "send each increment once for all clients dispatched together"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.local, WidthSGD | OrderedDropout) and not self.by_width:
            raise ValueError(
                f"local is {self.local.kind} and ranking is {self.ranking.kind}: it needs a width; "
                "rank by width_prefix or rolling_window, or choose another local rule."
            )
        if isinstance(self.ranking, RollingWindow) and self.local.norm == "per_width":
            raise ValueError(
                "ranking is rolling_window and local is ordered_dropout: it needs fixed channels, width_prefix."
            )
        if isinstance(self.local, ThresholdedSGD) and not isinstance(self.ranking, Threshold):
            raise ValueError(f"local is thresholded_sgd and ranking is {self.ranking.kind}: give ranking: threshold.")
        if isinstance(self.local, ThresholdedSGD) and self.local.scope != getattr(self.ranking, "scope", None):
            raise ValueError(f"local.scope is {self.local.scope}: give ranking.scope the same, {self.local.scope}.")
        if isinstance(self.local, OrderedDropout) and self.local.distillation and len(self.levels_in_ladder) == 1:
            raise ValueError("local.distillation is true and the ladder has one width: there is none to distil to.")
        if self.restoration is not None and len(self.levels_in_ladder) == 1:
            raise ValueError(
                f"restoration is {self.restoration.kind} and every client holds the whole model: give none."
            )

    @property
    def by_width(self) -> bool:
        """Whether sub-models are narrower networks, which are trained physically small."""
        return isinstance(self.ranking, WidthPrefix | RollingWindow)

    @property
    def label_aware(self) -> bool:
        """Whether the server must know which classes each client has."""
        return isinstance(self.aggregation, LabelAware) and self.aggregation.label_aware

    @property
    def levels_in_ladder(self) -> Ladder:
        """The densities this method really uses."""
        return self.ranking.ladder(self.ladder)


# name -> (module of this package, function)
BUILT_IN: Mapping[str, tuple[str, str]] = {
    "fedgmr": ("fedgmr", "fedgmr"),
    "fedgmr_without_restoration": ("fedgmr", "fedgmr_without_restoration"),
    "fedgmr_without_asynchrony": ("fedgmr", "fedgmr_without_asynchrony"),
    "fedgmr_without_buffer": ("fedgmr", "fedgmr_without_buffer"),
    "fedgmr_without_ims": ("fedgmr", "fedgmr_without_ims"),
    "fedgmr_without_buffer_and_ims": ("fedgmr", "fedgmr_without_buffer_and_ims"),
    "fedavg": ("fedavg", "fedavg"),
    "fedasync": ("fedasync", "fedasync"),
    "heterofl": ("heterofl", "heterofl"),
    "fjord": ("fjord", "fjord"),
    "fedrolex": ("fedrolex", "fedrolex"),
    "fiarse": ("fiarse", "fiarse"),
}
# What `--methods all` compares: the paper's seven, and GMR plugged into the four other sub-model methods.
PAPER = ("fedgmr", "fedavg", "fedasync", "heterofl", "fjord", "fedrolex", "fiarse")
PLUGGED = ("heterofl+aux+gmr", "fjord+aux+gmr", "fedrolex+aux+gmr", "fiarse+aux+gmr")


def with_workflow(method: Method) -> Method:
    """The paper's "+Aux": the method in FedGMR's semi-asynchronous workflow with buffer, staleness weights and IMS."""
    workflow = {"coordination": SemiAsynchronous(), "staleness": Polynomial(), "buffer": BufferRule(), "ims": True}
    return replace(method, title=f"{method.title or method.name}+Aux", **workflow)  # type: ignore[arg-type]


def with_restoration(method: Method) -> Method:
    """The paper's "+GMR": clients move up their ladder when their sub-model saturates."""
    return replace(method, title=f"{method.title or method.name}+GMR", restoration=Saturation())


_PLUG_INS: Mapping[str, Callable[[Method], Method]] = {"aux": with_workflow, "gmr": with_restoration}


def named_method(name: str, *overrides: Mapping[str, Any], path: str = "method") -> Method:
    """The method `name` with fields overridden by plain data, later ones last.

    Args:
        name: a built-in method or an import path; "+aux" puts it into FedGMR's workflow, "+gmr" adds restoration.
        *overrides: fields as in a recipe's section `method`.
        path: the section the overrides come from, for messages.
    """
    base, *plug_ins = name.split("+")
    method = method_factory(base)()
    if not isinstance(method, Method):
        raise SettingError(f"method.name is {base!r}, which returned {type(method).__name__}: return a fedgmr Method.")
    for plug_in in plug_ins:
        if plug_in not in _PLUG_INS:
            raise SettingError(f"method.name is {name!r}: {suggestion(plug_in, list(_PLUG_INS), base + '+')}")
        method = _PLUG_INS[plug_in](method)
    method = replace(method, name=name)
    for settings in overrides:
        method = build(type(method), settings, path=path, base=method)
    return method


def method_factory(name: str) -> Callable[[], Method]:
    """The function that composes the method `name`."""
    if ":" in name:
        return imported(name, "method.name")  # type: ignore[no-any-return]
    if name not in BUILT_IN:
        raise SettingError(f"method.name is {name!r}: {suggestion(name, list(BUILT_IN))}")
    module, function = BUILT_IN[name]
    return getattr(import_module(f"fedgmr.methods.{module}"), function)  # type: ignore[no-any-return]
