"""A SuperNode that ends when it has lost its SuperLink, so that its supervisor starts it again.

After an interruption at the wrong moment Flower's own program gives up, but a thread of it keeps the process alive:
offline, and nobody notices. This one takes the arguments of `flower-supernode` and needs nothing but Flower.
"""

import os
import sys
import threading
import traceback

from flwr.supernode.cli import flower_supernode


def main() -> None:
    """Run the SuperNode; a request to end it ends it as ever."""
    threading.excepthook = _end_with  # without its heartbeat a node is offline too
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    _end()


def _end_with(failure: threading.ExceptHookArgs) -> None:
    traceback.print_exception(failure.exc_value)
    _end()


def _end() -> None:
    print("The SuperNode has lost its SuperLink: it ends, to be started again.", file=sys.stderr, flush=True)
    os._exit(1)  # whatever threads are left


if __name__ == "__main__":
    main()
