"""A TCP relay that lets so many bytes per second through, each way, over all its connections; it counts them."""

import socket
import threading
import time

from e2e.relays import Relay


class Throttle(Relay):
    """Listens on a free port and forwards to one on this machine."""

    def __init__(self, rate: float) -> None:
        """`rate`: bytes per second in each direction."""
        super().__init__()
        self.rate, self.carried = rate, 0
        self._free = {"down": time.monotonic(), "up": time.monotonic()}  # when the link has carried what it was given
        self._lock = threading.Lock()

    def carry(self, data: bytes, sink: socket.socket, way: str) -> None:
        """Send bytes on when the link has room for them."""
        with self._lock:
            self._free[way] = max(self._free[way], time.monotonic()) + len(data) / self.rate
            wait = self._free[way] - time.monotonic()
            self.carried += len(data)
        time.sleep(wait)
        sink.sendall(data)
