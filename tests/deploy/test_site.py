"""A site's command lines, ports and files; Flower itself is not called."""

import json
import shlex
import shutil
import socket
import stat
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from fedgmr.deploy import site as sites
from fedgmr.deploy.site import Site, free_ports
from fedgmr.settings.refusals import SettingError


@pytest.fixture(autouse=True)
def _flower_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "check_flower", lambda: None)


def made(tmp_path: Path, *, tls: bool = False) -> Site:
    return Site(folder=tmp_path, clients=2, tls=tls, port=20001, node_ports=(20002, 20003))


def options(command: list[str]) -> dict[str, str]:
    """--name value pairs; a flag has an empty value."""
    words = [*command[1:], "--"]
    return {
        word: "" if following.startswith("--") else following
        for word, following in pairwise(words)
        if word.startswith("--") and word != "--"
    }


def test_without_tls(tmp_path: Path) -> None:
    site = made(tmp_path)
    link = options(list(site.superlink().command))
    assert link == {
        "--host": "127.0.0.1",
        "--port": "20001",
        "--isolation": "process",
        "--database": str(tmp_path / "superlink.db"),
        "--disable-runtime-dependency-installation": "",
        "--insecure": "",
    }
    assert options(list(site.superexec().command)) == {"--runtime-api-address": "127.0.0.1:20001", "--insecure": ""}
    node = options(list(site.supernode(1, address="127.0.0.1:9").command))
    assert (node["--superlink"], node["--port"], node["--insecure"]) == ("127.0.0.1:9", "20003", "")
    assert site.supernode(1).restart_delay >= 10
    assert site.superlink().restart_delay < 10


def test_with_tls_everybody_proves_who_they_are(tmp_path: Path) -> None:
    site = made(tmp_path, tls=True)
    link, exec_, node = (
        options(list(program.command)) for program in (site.superlink(), site.superexec(), site.supernode(0))
    )
    assert "--insecure" not in {*link, *exec_, *node}
    assert "--enable-supernode-auth" in link
    assert link["--superexec-auth-secret-file"] == exec_["--superexec-auth-secret-file"]
    assert link["--ssl-ca-certfile"] == exec_["--root-certificates"] == node["--root-certificates"]
    assert node["--auth-supernode-private-key"] == str(site.key(0)) != str(site.key(1))


def test_a_node_is_told_its_number_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGMR_DATA", raising=False)
    words = dict(word.split("=", 1) for word in shlex.split(made(tmp_path).node_config(1)))
    assert words == {"partition-id": "1", "state-dir": str(tmp_path / "nodes" / "1")}
    monkeypatch.setenv("FEDGMR_DATA", "my data")
    assert made(tmp_path).node_config(0).endswith('data-root="my data"')


def test_nothing_is_sent_to_strangers_and_everything_stays_in_the_folder(tmp_path: Path) -> None:
    environment = made(tmp_path).environment()
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] == "0.1"
    assert Path(environment["FLWR_HOME"]).is_relative_to(tmp_path)
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))


def test_ports_are_free_different_and_not_handed_out_to_others() -> None:
    ports = free_ports(12)
    assert len(set(ports)) == 12
    assert all(20_000 <= port < 32_000 for port in ports)  # the system hands out 32768 and more
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[0]))
        taken.listen()
        assert ports[0] not in free_ports(12)


def test_a_site_can_be_opened_again(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "run" / "flower", clients=3, tls=False)
    config = tomllib.loads((site.folder / "home" / "config.toml").read_text())
    assert config["superlink"] == {"default": "fleet", "fleet": {"address": site.address, "insecure": True}}
    assert sorted(path.name for path in (site.folder / "nodes").iterdir()) == ["0", "1", "2"]
    assert site.folder.stat().st_mode & 0o777 == 0o700
    again = Site.reopen(tmp_path / "run" / "flower")
    assert (again.folder, again.clients, again.tls) == (site.folder, 3, False)
    assert json.loads((site.folder / "site.json").read_text())["port"] == again.port
    with pytest.raises(SettingError, match="is no run of `fedgmr deploy local`"):
        Site.reopen(tmp_path / "flower")


def test_any_folder_can_be_named(tmp_path: Path) -> None:
    folder = tmp_path / 'o\'hara\\ "x" é 😀'
    site = made(folder, tls=True)
    (folder / "home").mkdir(parents=True)
    site._save()
    config = tomllib.loads((folder / "home" / "config.toml").read_text())
    assert config["superlink"]["fleet"]["root-certificates"] == str(folder / "tls" / "ca.crt")
    words = tomllib.loads(site.node_config(1).replace(" state-dir", "\nstate-dir"))
    assert words["state-dir"] == str(folder / "nodes" / "1")


def test_nothing_is_left_of_a_fleet_whose_run_did_not_begin(tmp_path: Path) -> None:
    """Its SuperLink's database would have the run start after all, beside the new one in the same directory."""
    first = Site.create(tmp_path / "flower", clients=2, tls=False)
    first.database.touch()
    first.database.with_name("registered-1").touch()
    Site.create(tmp_path / "flower", clients=1, tls=False)
    assert sorted(path.name for path in (tmp_path / "flower").iterdir()) == ["home", "logs", "nodes", "site.json"]
    assert [path.name for path in (tmp_path / "flower" / "nodes").iterdir()] == ["0"]


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen")
def test_credentials_of_a_site(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "flower", clients=2, tls=True)
    assert {path.name for path in (site.folder / "tls").iterdir()} == {
        *("ca.crt", "ca.key", "superlink.crt", "superlink.key", "superexec.secret"),
        *("node-0", "node-0.pub", "node-1", "node-1.pub"),
    }
    assert site.key(0).read_bytes() != site.key(1).read_bytes()
    assert stat.S_IMODE(site.key(0).stat().st_mode) == 0o600
    kept = site.key(0).read_bytes()
    Site.reopen(tmp_path / "flower")
    assert site.key(0).read_bytes() == kept


def test_missing_flower_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sites.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingError, match=r"flwr is not installed, which deployments need: pip install 'flwr>="):
        Site.create(tmp_path / "flower", clients=1, tls=False)
    assert not (tmp_path / "flower").exists()
