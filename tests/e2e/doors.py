"""Doors between nodes and SuperLink: a relay that can be shut, the written nginx, and a crowd that blocks a door."""

import contextlib
import shutil
import socket
import threading
import time
from pathlib import Path
from types import TracebackType

from fedgmr.deploy.app import TEMPLATES
from fedgmr.deploy.processes import Program


class Gate:
    """A TCP relay; while it is shut it accepts connections and closes them, and those that were open."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._open: set[socket.socket] = set()
        self._shut_until, self._target = 0.0, 0
        self.refused = 0

    def forward_to(self, port: int) -> str:
        """Begin; returns the address to use instead."""
        if not self._target:
            self._target = port
            threading.Thread(target=self._accept, daemon=True).start()
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def shut(self, seconds: float) -> None:
        """Let nobody through for so long; does not wait."""
        self._shut_until = time.monotonic() + seconds
        for side in list(self._open):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "Gate":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                inner, _ = self._listener.accept()
                if time.monotonic() < self._shut_until:
                    self.refused += 1
                    inner.close()
                    continue
                with contextlib.suppress(OSError):  # the SuperLink is away
                    outer = socket.create_connection(("127.0.0.1", self._target))
                    self._open |= {inner, outer}
                    for pair in ((inner, outer), (outer, inner)):
                        threading.Thread(target=self._relay, args=pair, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for side in (source, sink):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        self._open -= {source, sink}


def nginx(folder: Path, *, door: int, port: int, tls: Path) -> Program:
    """The written proxy on the port `door`, in front of a SuperLink on `port`."""
    text = (TEMPLATES / "nginx.conf").read_text()
    text = text.replace("8443", str(door)).replace("8000", str(port)).replace("/etc/fedgmr/tls", str(tls))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    start = f"daemon off; pid {folder}/nginx.pid; error_log stderr; events {{ worker_connections 768; }}"
    (folder / "nginx.conf").write_text(f"{start} http {{ access_log off; {places}\n{text}\n}}\n")
    command = [str(shutil.which("nginx")), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    return Program(name="nginx", command=command, restart_delay=1.0)


class Crowd:
    """So many connections to a port that send a byte every two seconds, or nothing, and come back when they are cut."""

    def __init__(self, door: int, *, size: int, address: str = "127.0.0.2") -> None:
        self.door, self.address, self.cut = door, address, 0
        self._over = False
        self._sides = [self._side() for _ in range(size)]
        threading.Thread(target=self._push, daemon=True).start()

    def leave(self) -> None:
        """Close all of them."""
        self._over = True

    def _side(self) -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", self.door), timeout=1.0, source_address=(self.address, 0))
        except OSError:
            return None

    def _push(self) -> None:
        while not self._over:
            for number, side in enumerate(self._sides):
                try:
                    if side is None or (number % 2 and side.send(b"\x16") != 1):
                        raise ConnectionError
                except OSError:
                    self.cut += 1
                    self._sides[number] = self._side()
            time.sleep(2.0)
        for side in self._sides:
            if side is not None:
                side.close()
