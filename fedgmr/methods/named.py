"""Methods by name: the built-in ones, the suffixes +aux and +gmr, and a user's own by import path.

A recipe names a method and may override any of its fields, so ablations and plug-ins are switches. A user's own method
is a function that returns a Method, named by its import path "package.module:function".
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedgmr.methods.fedasync import FEDASYNC
from fedgmr.methods.fedavg import FEDAVG
from fedgmr.methods.fedgmr import ABLATIONS, FEDGMR
from fedgmr.methods.fedrolex import FEDROLEX
from fedgmr.methods.fiarse import FIARSE
from fedgmr.methods.fjord import FJORD
from fedgmr.methods.heterofl import HETEROFL
from fedgmr.methods.method import Method
from fedgmr.server.buffer import BufferRule
from fedgmr.server.coordination import SemiAsynchronous
from fedgmr.server.restoration import Saturation
from fedgmr.settings.build import build, imported
from fedgmr.settings.refusals import SettingError, show_value, suggestion
from fedgmr.staleness import Polynomial

# By name: the method, and a line about it.
BUILT_IN: Mapping[str, tuple[Method, str]] = {
    "fedgmr": (FEDGMR, "The whole method, with the paper's settings."),
    **ABLATIONS,
    "fedavg": (FEDAVG, "Synchronous averaging of full models."),
    "fedasync": (FEDASYNC, "Asynchronous mixing of full models with polynomial staleness."),
    "heterofl": (HETEROFL, "Width prefixes with scaler, masked loss and label-aware averaging, synchronous."),
    "fjord": (FJORD, "Width prefixes with one width per mini-batch, synchronous."),
    "fedrolex": (FEDROLEX, "Rolling width windows with label-aware averaging, synchronous."),
    "fiarse": (FIARSE, "Magnitude sub-models with one global threshold, synchronous."),
}
# The methods of `--methods all`: the paper's seven, and GMR plugged into the four other sub-model methods.
PAPER = ("fedgmr", "fedavg", "fedasync", "heterofl", "fjord", "fedrolex", "fiarse")
PLUGGED = ("heterofl+aux+gmr", "fjord+aux+gmr", "fedrolex+aux+gmr", "fiarse+aux+gmr")
# By suffix: how it is written in a title, and the fields that it sets.
_PLUG_INS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "aux": (
        "+Aux",
        {"coordination": SemiAsynchronous(), "staleness": Polynomial(), "buffer": BufferRule(), "ims": True},
    ),
    "gmr": ("+GMR", {"restoration": Saturation()}),
}


def named_method(name: str, *overrides: Mapping[str, Any], path: str = "method") -> Method:
    """Return the method `name` with fields overridden by plain data, later ones last.

    Args:
        name: a built-in method or an import path; "+aux" puts it into FedGMR's semi-asynchronous workflow with buffer,
            staleness weights and IMS, "+gmr" lets clients move up when their sub-model saturates.
        *overrides: fields as in a recipe's section `method`.
        path: the section the overrides come from, for messages.
    """
    if not isinstance(name, str):
        raise SettingError(f"name is {show_value(name)}: give the name of a method, see `fedgmr list`.")
    base, *plug_ins = name.split("+")
    method = _base_method(base)
    for plug_in in plug_ins:
        if plug_in not in _PLUG_INS:
            raise SettingError(f"method.name is {name!r}: {suggestion(plug_in, list(_PLUG_INS), base + '+')}")
        suffix, fields = _PLUG_INS[plug_in]
        method = replace(method, title=f"{method.title or method.name}{suffix}", **fields)
    method = replace(method, name=name)
    for settings in overrides:
        method = build(type(method), settings, path=path, base=method)
    return method


def _base_method(name: str) -> Method:
    if ":" not in name:
        if name not in BUILT_IN:
            raise SettingError(f"method.name is {name!r}: {suggestion(name, list(BUILT_IN))}")
        return BUILT_IN[name][0]
    factory = imported(name, "method.name")
    try:
        inspect.signature(factory).bind()
    except (TypeError, ValueError) as error:  # it wants arguments, is no function, or tells nothing of itself
        fix = "give a function that returns a fedgmr Method and takes no arguments"
        raise SettingError(f"method.name is {name!r}: {fix}.") from error
    method = factory()
    if not isinstance(method, Method):
        raise SettingError(f"method.name is {name!r}, which returned {type(method).__name__}: return a fedgmr Method.")
    return method
