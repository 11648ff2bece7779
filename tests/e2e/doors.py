"""Doors between nodes and SuperLink: a relay that can be shut, the written nginx, and a crowd that blocks a door."""

import shutil
import socket
import threading
import time
from pathlib import Path

from e2e.relays import Relay, end
from fedgmr.deploy.app import TEMPLATES
from fedgmr.deploy.processes import Program


class Gate(Relay):
    """A TCP relay; while it is shut it accepts connections and closes them, and those that were open."""

    def __init__(self) -> None:
        super().__init__()
        self._open: set[socket.socket] = set()
        self._shut_until = 0.0
        self.refused = 0

    def shut(self, seconds: float) -> None:
        """Let nobody through for so long; does not wait."""
        self._shut_until = time.monotonic() + seconds
        end(*self._open)
        self._open.clear()

    def admits(self) -> bool:
        """Nobody while it is shut."""
        shut = time.monotonic() < self._shut_until
        self.refused += shut
        return not shut

    def carry(self, data: bytes, sink: socket.socket, way: str) -> None:
        """Send bytes on, and know where to."""
        self._open.add(sink)
        sink.sendall(data)


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
