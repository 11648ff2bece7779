"""Who must not get in, and who gets in and lies: with certificates, keys and Flower's own programs.

Minutes; run with `make test-slow` where the extra `flower` is installed.
"""

import datetime
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from e2e.observed import Observer, deploy
from e2e.test_deploy import wait_for
from fedgmr.deploy.processes import Program, Supervisor
from fedgmr.deploy.site import CONNECTION, Site, free_ports

pytestmark = pytest.mark.slow
HOSTILE = Path(__file__).with_name("hostile")
LIAR, AWAY = 1, 2
GONE = 60.0


def with_words(command: Sequence[str], **changes: str) -> list[str]:
    """A command with other values of some of its options."""
    words = list(command)
    for option, value in changes.items():
        words[words.index(f"--{option.replace('_', '-')}") + 1] = value
    return words


def new_key(folder: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(folder)], check=True)
    return str(folder)


def strangers(site: Site, folder: Path) -> list[Program]:
    """Four nodes that must not become clients; the key of the thief alone is registered, as an owner of a node can."""
    ports = [str(port) for port in free_ports(30)[-4:]]  # the first of them are the site's own
    away, there = site.supernode(AWAY).command, site.supernode(0).command
    plain = list(away[:-2])  # without a key
    at = plain.index("--root-certificates")
    thief = new_key(folder / "thief-key")
    register = site.flwr("supernode", "register", f"{thief}.pub", CONNECTION)
    subprocess.run(register, env=site.environment(), check=True, capture_output=True)
    commands = {
        "thief": with_words(away, port=ports[0], auth_supernode_private_key=thief),  # has the files and the number
        "unknown": with_words(away, port=ports[1], auth_supernode_private_key=new_key(folder / "unknown-key")),
        "twin": with_words(there, port=ports[2]),  # has the key of a node that is there
        "plain": with_words([*plain[:at], "--insecure", *plain[at + 2 :]], port=ports[3]),
    }
    return [
        Program(name=name, command=command, restart_delay=5.0, environment=site.environment())
        for name, command in commands.items()
    ]


def test_strangers_stay_out_and_a_liar_changes_nothing(tmp_path: Path) -> None:
    """Client 2 is away for a minute while all strangers try; client 1 sends 1e38 in place of what it has trained."""
    sites, folder = list[Site](), tmp_path / "strangers"
    folder.mkdir()
    with Supervisor(folder, folder, {}) as crew:

        def nodes(site: Site, client: int) -> Program:
            sites.append(site)
            path = os.pathsep.join([str(HOSTILE), site.environment()["PYTHONPATH"]])
            changes = {LIAR: {"environment": {"PYTHONPATH": path}}, AWAY: {"restart_delay": GONE}}
            return replace(site.supernode(client), **changes.get(client, {}))

        def come(fleet: Observer) -> None:
            for program in strangers(sites[0], folder):
                crew.start(program)
            fleet.kill("supernode.py", f"--port {fleet.node_port(AWAY)}")

        def try_again(fleet: Observer) -> None:
            crew.check()

        again = dict.fromkeys(range(4, 20), try_again)
        ended = deploy(tmp_path, ticks=24, acts={2: come, **again}, nodes=nodes, tls=True)
    ended.check_books()
    events = ended.events
    joined = {(e["client"], e["node"]) for e in events if e["event"] == "joined"}
    assert sorted(client for client, _ in joined) == [0, LIAR, AWAY], "one key for each number, to the end"
    logs = {path.stem: path.read_text() for path in folder.glob("*.log")}
    assert {name: "SuperNode ID" in text for name, text in logs.items()} == {
        "thief": True,  # a node, and no client
        "unknown": False,
        "twin": False,
        "plain": False,
    }
    gone = next(e["seconds"] for e in events if e["event"] == "tick" and e["tick"] == 2)
    assert any(e["seconds"] > gone + GONE for e in ended.accepted(AWAY)), "its place was kept"
    assert ended.accepted(LIAR) == []
    assert {(e["client"], e["reason"]) for e in events if e["event"] == "refused"} == {(LIAR, "non-finite")}
    held = [e["client"] for e in ended.summary["events"] if e["event"] == "held"]
    assert set(held) == {LIAR}  # a quick fleet has time to hold it again
    assert ended.summary["final_loss"] < 3.0, "as before the first step, or better"


def test_a_certificate_that_has_expired(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "flower", clients=1, tls=True)
    tls = site.folder / "tls"
    expire(tls / "superlink.crt", tls)
    with Supervisor(site.folder, site.logs, site.environment()) as crew:
        crew.start(site.superlink())
        wait_for(lambda: "Uvicorn running" in (site.logs / "superlink.log").read_text(), 120)
        crew.start(site.supernode(0))
        node = site.logs / "supernode-0.log"
        wait_for(lambda: "certificate has expired" in node.read_text(), 120)
        assert "SuperNode ID" not in node.read_text()
        listed = subprocess.run(
            site.flwr("supernode", "list", CONNECTION), env=site.environment(), capture_output=True, check=False
        )
        assert listed.returncode != 0, "nor does the command line trust it"


def expire(certificate: Path, tls: Path) -> None:
    """The same certificate by the same authority, but it was valid up to yesterday."""
    old = x509.load_pem_x509_certificate(certificate.read_bytes())
    authority = load_pem_private_key((tls / "ca.key").read_bytes(), password=None)
    assert isinstance(authority, EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=old.issuer,
        subject_name=old.subject,
        public_key=old.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(days=2),
        not_valid_after=now - datetime.timedelta(days=1),
        extensions=list(old.extensions),
    )
    certificate.write_bytes(builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM))
