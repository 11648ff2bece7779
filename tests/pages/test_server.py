"""The live page's server: what it answers, and whom it refuses."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgmr.cli.main import main
from fedgmr.pages.page import page
from fedgmr.pages.server import PageServer

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def server(make_run: Any, tmp_path: Path) -> Iterator[PageServer]:
    make_run(tmp_path / "runs" / "seed0")
    make_run(tmp_path / "runs" / "<b>seed1", title=HOSTILE)
    with PageServer([tmp_path / "runs"]) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def ask(
    server: PageServer, path: str, *, method: str = "GET", token: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, f"/{server.token if token is None else token}/{path}", headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_page_state_and_columns(server: PageServer) -> None:
    status, headers, content = ask(server, "")
    assert (status, content.decode()) == (200, page("runs"))
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    status, headers, content = ask(server, "api/state")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    runs = json.loads(content)["runs"]
    assert {run["name"]: run["method"] for run in runs} == {"<b>seed1": HOSTILE, "seed0": "FedGMR"}
    (number,) = (run["id"] for run in runs if run["name"] == "seed0")
    status, _, content = ask(server, f"api/columns?id={number}&from=1&epoch=0")
    assert (status, json.loads(content)["columns"]["tick"]) == (200, [5, 10])
    assert json.loads(content)["clients"]["level"] == [[0, 1], [0, 1]]
    assert json.loads(ask(server, f"api/columns?id={number}&clients=0")[2])["clients"] == {}
    assert json.loads(ask(server, f"api/events?id={number}")[2])["rows"] == 3
    found = json.loads(ask(server, f"api/provenance?id={number}")[2])
    assert (found["recipe"].splitlines()[0], found["facts"]) == ("name: digits", {})


@pytest.mark.parametrize("path", ["", "api/state", "nothing"])
def test_every_answer_is_guarded(path: str, server: PageServer) -> None:
    for token in (server.token, "wrong"):
        _, headers, _ = ask(server, path, token=token)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Server"] == "fedgmr"
        assert not {name for name in headers if name.startswith("Access-Control")}


def test_who_has_no_token_is_refused(server: PageServer) -> None:
    for token in ("", "wrong", server.token[:-1], server.token + "x", "%C3%A9", "%2e%2e"):
        for path in ("", "api/state", "api/columns?id=0", "api/events?id=0", "api/provenance?id=0"):
            assert ask(server, path, token=token)[0] == 403


def test_other_names_and_origins_are_refused(server: PageServer) -> None:
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        assert ask(server, "api/state", Host=host)[0] == 403, host
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"):
        assert ask(server, "api/state", Origin=origin)[0] == 403, origin
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert ask(server, "api/state", Host=host, Origin=f"http://{host}")[0] == 200


def test_two_names_are_refused(server: PageServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        names = "".join(f"Host: {host}\r\n" for host in server.hosts)
        connection.sendall(f"GET /{server.token}/ HTTP/1.1\r\n{names}\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 403"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "NONSENSE"])
def test_other_methods_are_refused(method: str, server: PageServer) -> None:
    assert ask(server, "api/state", method=method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "seed0/recipe.yaml",
        "runs/seed0/metrics.jsonl",
        "page.js",
        "api",
        "api/",
        "api/state/",
        "/",
        "/etc/passwd",
        "api/columns",
        "api/columns?id=99",
        "api/columns?id=seed0",
        "api/columns?id=-1",
        "api/columns?id=0&from=x",
        "api/columns?id=0&epoch=1e3",
        "api/columns?id=" + "9" * 5000,
        "api/columns?id=%C2%B2",
        "api/events",
        "api/events?id=99",
        "api/provenance?id=99",
        "api/provenance?id=../seed0",
        "api/provenance?id=recipe.yaml",
    ],
)
def test_nothing_else_is_there(path: str, server: PageServer, tmp_path: Path) -> None:
    ask(server, "api/state")
    status, _, content = ask(server, path)
    assert (status, content) == (404, b"There is nothing here.\n")


def test_an_error_names_no_files(server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.watch, "state", lambda _: (tmp_path / "secret").read_text())
    assert ask(server, "api/state")[::2] == (500, b"The runs could not be read.\n")


def test_it_listens_to_this_machine_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert len(server.token) >= 32


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    def interrupted(_: PageServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", interrupted)
    assert main(["watch", str(tmp_path), "later", "--open"]) == 0
    missing, watching, _, end = capsys.readouterr().out.splitlines()
    assert missing == "later is not there yet: its runs appear when they begin."
    assert watching == f"Watching at {opened[0]} (Ctrl-C ends it)"
    assert end == "No longer watching; the runs go on."


def test_a_port_that_cannot_be_had(server: PageServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "runs", "--port", str(server.server_port)]) == 2
    assert f"--port is {server.server_port} (Address already in use)" in capsys.readouterr().err
    assert main(["watch", "runs", "--port", "99999"]) == 2
    assert "--port is 99999 (no port has this number)" in capsys.readouterr().err
