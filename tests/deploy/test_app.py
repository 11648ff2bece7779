"""The written folders, read back as Flower and systemd read them."""

import configparser
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedgmr.deploy.app import TEMPLATES, write_app, write_project
from fedgmr.recipe import load_recipe, recipe_from
from fedgmr.settings.refusals import SettingError
from fedgmr.settings.text import read_mapping


def test_an_app_has_what_flower_asks_for(tmp_path: Path) -> None:
    recipe = load_recipe("quickstart", ["seconds=60"])
    write_app(tmp_path / "app", recipe, tmp_path / 'a "run"')
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert project["project"]["name"] == "quickstart"
    assert app["components"] == {
        "serverapp": "fedgmr.flower.server.server_app:app",
        "clientapp": "fedgmr.flower.client.client_app:app",
    }
    assert app["config"] == {
        "recipe": "recipe.yaml",
        "overrides": "",
        "output": str(tmp_path / 'a "run"'),
        "resume": False,
        "trust": "",
    }
    assert recipe_from(read_mapping(tmp_path / "app" / "recipe.yaml")) == recipe


def test_a_resume_may_import_what_the_recipe_names(tmp_path: Path) -> None:
    """Flower takes only keys that stand in the file, and its run directory is somebody else's to the ServerApp."""
    write_app(tmp_path, recipe_from({"task": "e2e.tiny:dense", "method": "fedavg", "seconds": 9}), tmp_path / "run")
    config = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["trust"] == "e2e.tiny:dense"


@pytest.mark.parametrize(
    ("name", "project"), [("My run #2", "my-run-2"), ("5 clients", "run-5-clients"), ("--", "run"), ("Größe", "gr-e")]
)
def test_project_names(tmp_path: Path, name: str, project: str) -> None:
    write_app(tmp_path, replace(load_recipe("quickstart"), name=name), tmp_path)
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["name"] == project


def test_a_project_has_every_file_and_no_open_word(tmp_path: Path) -> None:
    write_project(tmp_path / "fleet", load_recipe("quickstart", ["fleet.clients=4"]))
    files = {str(path.relative_to(tmp_path / "fleet")) for path in (tmp_path / "fleet").rglob("*") if path.is_file()}
    units = {f"systemd/fedgmr-{name}.service" for name in ("superlink", "superexec", "supernode")}
    units |= {"systemd/supernode.py"}
    assert files == {"README.md", "pyproject.toml", "recipe.yaml", "certificates.sh", "nginx.conf", *units}
    readme = (tmp_path / "fleet" / "README.md").read_text()
    assert "0 to 3" in readme
    assert "$" not in readme
    for line in readme.splitlines():  # every file the table names is there
        if line.startswith("| `") and "/" not in line.partition("|")[2].partition("|")[0]:
            name = line.split("`")[1]
            assert "." not in name or (tmp_path / "fleet" / name).exists(), name


def test_units_start_what_the_readme_says(tmp_path: Path) -> None:
    write_project(tmp_path / "fleet", load_recipe("quickstart"))
    readme = (tmp_path / "fleet" / "README.md").read_text()
    for program in ("superlink", "superexec", "supernode"):
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string((tmp_path / "fleet" / "systemd" / f"fedgmr-{program}.service").read_text())
        words = shlex.split(unit["Service"]["ExecStart"].replace("\\", " "))
        started = [Path(word).name for word in words if not word.startswith("--")]
        assert started[0] == ("python" if program == "supernode" else f"flower-{program}")
        assert program != "supernode" or started[1] == "supernode.py"
        shown = readme.partition(f"\nflower-{program} ")[2].partition("```")[0].partition("\nflower-")[0]
        assert [w for w in words if w.startswith("--")] == [w for w in shlex.split(shown) if w.startswith("--")]
        assert unit["Service"]["Restart"] == "always"
        assert unit["Unit"]["StartLimitIntervalSec"] == "0", "systemd gives up after five starts in ten seconds"
        assert unit["Service"].get("UMask", "") == ("" if program == "superexec" else "0077")
        assert "FLWR_TELEMETRY_ENABLED=0" in (tmp_path / "fleet" / "systemd" / f"fedgmr-{program}.service").read_text()


def test_the_proxy_cuts_off_whoever_dawdles(tmp_path: Path) -> None:
    write_project(tmp_path / "fleet", load_recipe("quickstart"))
    text = (tmp_path / "fleet" / "nginx.conf").read_text()
    lines = [line.strip() for line in text.splitlines() if not line.strip().startswith("#")]
    assert text.count("{") == text.count("}") == lines.count("}") == 3
    assert all(line.endswith((";", "{", "}")) for line in lines if line)
    zone = next(line for line in lines if line.startswith("limit_conn_zone"))
    assert lines.index(zone) < lines.index("server {"), "it belongs to nginx's http section"
    assert "zone=fedgmr:" in zone
    for limit in ("limit_conn fedgmr 32;", "client_header_timeout 10s;", "client_body_timeout 60s;"):
        assert limit in lines
    assert "client_max_body_size 32m;" in lines


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note").touch()
    with pytest.raises(SettingError, match="not empty: give a new folder"):
        write_project(tmp_path, load_recipe("quickstart"))


def certificates(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", str(TEMPLATES / "certificates.sh"), *map(str, words)], check=False, capture_output=True, text=True
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_next_certificate_is_by_the_authority_that_the_nodes_know(tmp_path: Path) -> None:
    tls = tmp_path / "etc" / "fedgmr" / "tls"
    assert certificates(tls, "a.example.org").returncode == 0
    assert all(folder.stat().st_mode & 0o777 == 0o755 for folder in (tls, tls.parent)), "its user gets there"
    kept = {name: (tls / name).read_bytes() for name in ("ca.crt", "ca.key", "superexec.secret", "superlink.crt")}
    assert certificates(tls, "a.example.org").returncode == 0
    assert {name for name in kept if (tls / name).read_bytes() != kept[name]} == {"superlink.crt"}
    verify = ["openssl", "verify", "-CAfile", "ca.crt", "superlink.crt"]
    assert subprocess.run(verify, cwd=tls, capture_output=True).returncode == 0
    (tls / "ca.key").unlink()
    before = (tls / "superlink.key").read_bytes()
    refused = certificates(tls, "a.example.org")
    assert (refused.returncode, "no ca.key to sign with" in refused.stderr) == (1, True)
    assert (tls / "superlink.key").read_bytes() == before
    assert certificates(tmp_path / "other").stderr.startswith("Usage: sh certificates.sh FOLDER NAME")
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_certificates_name_the_server_and_lead_to_their_authority(tmp_path: Path) -> None:
    names = ["superlink.example.org", "10.1.2.3", "fd00::7"]
    assert certificates(tmp_path / "tls", *names).returncode == 0
    check = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca.crt"]
    for name in [*names, "localhost", "127.0.0.1"]:
        kind = "-verify_hostname" if name[-1].isalpha() else "-verify_ip"
        done = subprocess.run([*check, kind, name, "superlink.crt"], cwd=tmp_path / "tls", capture_output=True)
        assert done.returncode == 0, done.stderr
    stranger = [*check, "-verify_hostname", "other.example.org", "superlink.crt"]
    assert subprocess.run(stranger, cwd=tmp_path / "tls", capture_output=True).returncode != 0
    for secret in ("ca.key", "superlink.key", "superexec.secret"):
        assert (tmp_path / "tls" / secret).stat().st_mode & 0o077 == 0
