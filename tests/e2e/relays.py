"""A TCP relay on a free port in front of a port of this machine; what it lets through is up to whoever extends it."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Relay:
    """Forwards every connection, one thread each way."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._target = 0

    def forward_to(self, port: int) -> str:
        """Begin, the first time; returns the address to use instead."""
        if not self._target:
            self._target = port
            threading.Thread(target=self._accept, daemon=True).start()
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def admits(self) -> bool:
        """Whether a connection that has come is forwarded; otherwise it is closed."""
        return True

    def carry(self, data: bytes, sink: socket.socket, way: str) -> None:
        """Send bytes on; `way` is up (to the port) or down."""
        sink.sendall(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                inner, _ = self._listener.accept()
                if not self.admits():
                    inner.close()
                    continue
                with contextlib.suppress(OSError):  # nobody is there now
                    outer = socket.create_connection(("127.0.0.1", self._target))
                    for pair in ((inner, outer, "up"), (outer, inner, "down")):
                        threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                self.carry(data, sink, way)
        end(source, sink)


def end(*sides: socket.socket) -> None:
    """End connections, whatever state they are in."""
    for side in sides:
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
