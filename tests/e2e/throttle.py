"""A TCP relay that lets so many bytes per second through, each way, over all its connections; it counts them."""

import contextlib
import socket
import threading
import time
from types import TracebackType

_PIECE = 4096


class Throttle:
    """Listens on a free port and forwards to one on this machine."""

    def __init__(self, rate: float) -> None:
        """`rate`: bytes per second in each direction."""
        self.rate, self.carried, self._target = rate, 0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._free = {"down": time.monotonic(), "up": time.monotonic()}  # when the link has carried what it was given
        self._lock = threading.Lock()

    def forward_to(self, port: int) -> str:
        """Begin; returns the address to use instead."""
        self._target = port
        threading.Thread(target=self._accept, daemon=True).start()
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "Throttle":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                inner, _ = self._listener.accept()
                outer = socket.create_connection(("127.0.0.1", self._target))
                for pair in ((inner, outer, "up"), (outer, inner, "down")):
                    threading.Thread(target=self._relay, args=pair, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                with self._lock:
                    self._free[way] = max(self._free[way], time.monotonic()) + len(data) / self.rate
                    wait = self._free[way] - time.monotonic()
                    self.carried += len(data)
                time.sleep(wait)
                sink.sendall(data)
        for side in (source, sink):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
