"""What the owner of a hostile node puts on its path: its ClientApps train, and then send something else.

Python imports this file at the start of every program of that node.
"""

import sys

if any(word.endswith("flwr-clientapp") for word in sys.orig_argv):
    from dataclasses import replace
    from typing import Any

    from fedgmr.exchange import Update
    from fedgmr.flower.client.client_node import ClientNode

    _train = ClientNode.train

    def _lie(self: ClientNode, *task: Any, **more: Any) -> Update:
        update = _train(self, *task, **more)
        return replace(update, values=update.values * 0 + 1e38)

    ClientNode.train = _lie  # type: ignore[method-assign]
