"""The page and its data over HTTP, on this machine alone, read-only, for who has the token in the address.

A browser sends every page's requests to 127.0.0.1, so whoever asks must know the token, name this server in `Host`, and
come from no other `Origin`. Runs go by number: no request names a file. docs/watching.md.
"""

import json
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedgmr.pages.page import page, policy
from fedgmr.pages.watch import Watch

ADDRESS = "127.0.0.1"
_PATIENCE = 1.0  # seconds for an answer about many runs, the others follow in the next one
_MOST = 1 << 53  # the largest number that a browser counts to
_HTML, _JSON, _TEXT = ("text/html", "application/json", "text/plain")


class PageServer(ThreadingHTTPServer):
    """Serves the runs below some directories; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, directories: Sequence[Path], port: int = 0) -> None:
        self.watch = Watch(directories)
        self.token = secrets.token_urlsafe(24)
        self.policy = f"{policy(live=True)}; frame-ancestors 'none'"
        self.page = page(self.watch.title).encode(errors="replace")
        super().__init__((ADDRESS, port), _Answer)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """What a browser that means this server calls it."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that went away in the middle of an answer is no news."""


class _Answer(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 30  # seconds for a request to arrive
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a request."""
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            return self._send(HTTPStatus.FORBIDDEN, b"This server has another name.\n")
        if self.headers.get("Origin") not in (None, *(f"http://{host}" for host in self.server.hosts)):
            return self._send(HTTPStatus.FORBIDDEN, b"Only the page itself may ask.\n")
        asked = urlsplit(self.path)
        token, _, name = asked.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self._send(HTTPStatus.FORBIDDEN, b"The address lacks the token that `fedgmr watch` printed.\n")
        if name == "":
            return self._send(HTTPStatus.OK, self.server.page, _HTML)
        try:
            data = self._data(name, asked.query)
        except Exception:  # whose words may name files
            return self._send(HTTPStatus.INTERNAL_SERVER_ERROR, b"The runs could not be read.\n")
        if data is None:
            return self._send(HTTPStatus.NOT_FOUND, b"There is nothing here.\n")
        return self._send(HTTPStatus.OK, json.dumps(data, allow_nan=False, separators=(",", ":")).encode(), _JSON)

    def _data(self, name: str, query: str) -> dict[str, Any] | None:
        if name == "api/state":
            return self.server.watch.state(_PATIENCE)
        if name not in ("api/columns", "api/events", "api/provenance"):
            return None
        words = {key: values[-1] for key, values in parse_qs(query).items()}
        numbers = [_whole(words.get(key, "0")) for key in ("id", "from", "epoch")]
        if "id" not in words or None in numbers:
            return None
        number, start, epoch = (each or 0 for each in numbers)
        if name == "api/provenance":
            return self.server.watch.provenance(number)
        if name == "api/events":
            return self.server.watch.events(number, start, epoch)
        return self.server.watch.columns(number, start, epoch, clients=words.get("clients") != "0")

    def _send(self, status: HTTPStatus, content: bytes, kind: str = _TEXT) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        if status != HTTPStatus.OK:  # what else the request holds is not read
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what http.server itself refuses: other methods, malformed requests."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._send(status, b"Only GET is answered here.\n")

    def version_string(self) -> str:
        """The header `Server`, without versions."""
        return "fedgmr"

    def log_message(self, *_: Any) -> None:
        """Print nothing, a page asks every second."""


def _whole(text: str) -> int | None:
    """A number as a page writes it; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 17 and int(text) < _MOST else None
