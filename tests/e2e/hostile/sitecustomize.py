"""What the owner of a hostile node puts on its path: its ClientApps train, and then send something else.

Python imports this file at the start of every program of that node. It changes the client's app only when that is
imported, because Flower gives up a program that is slow to begin.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Liar(MetaPathFinder):
    """Finds one module, in which it exchanges the training."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "fedgmr.flower.client.client_node":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            train = module.ClientNode.train
            module.ClientNode.train = lambda *task, **more: lie(train(*task, **more))

        loader.exec_module = execute_and_change
        return spec


def lie(update: Any) -> Any:
    """An update of the right shape and of no use."""
    return replace(update, values=update.values * 0 + 1e38)


sys.meta_path.insert(0, Liar())
