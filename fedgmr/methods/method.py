"""A method is a composition: server rules + a local rule + whether increments are multicast (IMS).

The files beside this one each return a Method; a recipe names one and may override any field, so ablations and
plug-ins are switches. A user's own method is a function that returns a Method, named by import path
"package.module:function".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from fedgmr.server.server import ServerRules
from fedgmr.settings import SettingError, build, imported, suggestion
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


# name -> (module of this package, function)
BUILT_IN: Mapping[str, tuple[str, str]] = {
    "fedgmr": ("fedgmr", "fedgmr"),
    "fedgmr_without_restoration": ("fedgmr", "fedgmr_without_restoration"),
    "fedavg": ("fedavg", "fedavg"),
    "fedasync": ("fedasync", "fedasync"),
}


def named_method(name: str, *overrides: Mapping[str, Any]) -> Method:
    """The method `name` (built in, or an import path) with fields overridden by plain data, later ones last."""
    method = method_factory(name)()
    if not isinstance(method, Method):
        raise SettingError(f"method.name is {name!r}, which returned {type(method).__name__}: return a fedgmr Method.")
    method = replace(method, name=name)
    for settings in overrides:
        method = build(type(method), settings, path="method", base=method)
    return method


def method_factory(name: str) -> Callable[[], Method]:
    """The function that composes the method `name`."""
    if ":" in name:
        return imported(name, "method.name")  # type: ignore[no-any-return]
    if name not in BUILT_IN:
        raise SettingError(f"method.name is {name!r}: {suggestion(name, list(BUILT_IN))}")
    module, function = BUILT_IN[name]
    return getattr(import_module(f"fedgmr.methods.{module}"), function)  # type: ignore[no-any-return]
