"""The place of a deployment on one machine: its folder, ports, credentials, and Flower's command lines.

A site is the folder `flower` in the run directory. Everything Flower writes stays inside (its home is there, too),
nothing is sent to Flower's makers, and a fleet can be started again from it.
"""

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from fedgmr.deploy.app import SUPERNODE, TEMPLATES
from fedgmr.deploy.processes import Program
from fedgmr.files import read_json, write_atomic
from fedgmr.settings.refusals import SettingError

CONNECTION = "fleet"
_TESTED = ("1.41", "1.42")
_SITE = "site.json"
LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS = 20_000, 12_000
_PROGRAMS = ("flwr", "flower-superlink", "flower-superexec", "flower-supernode")
_LINK_DELAY = 1.0  # seconds; the whole fleet waits for it
_LOOKS = 40  # per second, in which the nodes look for work; more would take a core of a large fleet that is idle
_NODE_DELAY = 12.0  # a node that comes back sooner is refused, because it still counts as online


@dataclass(frozen=True, kw_only=True)
class Site:
    """One machine's deployment."""

    folder: Path
    clients: int
    tls: bool
    port: int
    node_ports: tuple[int, ...]
    host: str = LOOPBACK  # where the SuperLink listens

    @classmethod
    def create(cls, folder: Path, *, clients: int, tls: bool, host: str = LOOPBACK) -> "Site":
        """Prepare a new folder for a fleet of so many clients; SettingError where Flower or openssl is missing.

        One that is there is of a fleet whose run did not begin; its SuperLink would still know that run, and start it.
        """
        check_flower()
        port, *node_ports = free_ports(1 + clients)
        site = cls(
            folder=folder.absolute(), clients=clients, tls=tls, port=port, node_ports=tuple(node_ports), host=host
        )
        if site.folder.exists():
            shutil.rmtree(site.folder)
        # The SuperLink's database holds every update, and the tokens of its programs.
        site.folder.mkdir(parents=True, mode=0o700)
        for name in ("home", "logs", *(f"nodes/{client}" for client in range(clients))):
            (site.folder / name).mkdir(parents=True)
        if tls:
            site._make_credentials()
        site._save()
        return site

    @classmethod
    def reopen(cls, folder: Path) -> "Site":
        """The site of an earlier deployment, with ports that are free now."""
        words = read_json(folder / _SITE)
        if not words:
            raise SettingError(
                f"{str(folder.parent)!r} is no run of `fedgmr deploy local`: for a fleet of machines, start the app "
                "again with `flwr run APP CONNECTION -c resume=true`."
            )
        check_flower()
        port, *node_ports = free_ports(1 + words["clients"])
        site = cls(folder=folder.absolute(), **{**words, "port": port, "node_ports": tuple(node_ports)})
        site._save()
        return site

    @property
    def address(self) -> str:
        """The address of the SuperLink for programs on this machine."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def app(self) -> Path:
        """The Flower app."""
        return self.folder / "app"

    @property
    def logs(self) -> Path:
        """The output of the programs."""
        return self.folder / "logs"

    @property
    def database(self) -> Path:
        """The SuperLink's state; with it a killed SuperLink knows its runs and nodes again."""
        return self.folder / "superlink.db"

    def environment(self) -> dict[str, str]:
        """The environment of every program: our Flower first, its home in the site, no telemetry, own tasks found."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        modules = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
        return {
            "OMP_NUM_THREADS": "1",  # many clients share the machine
            **os.environ,
            "PATH": path,
            "PYTHONPATH": modules,
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": f"{max(0.1, self.clients / _LOOKS):g}",
        }

    def superlink(self) -> Program:
        """The exchange between ServerApp and nodes."""
        command = [*_command("flower-superlink"), "--host", self.host, "--port", str(self.port)]
        command += ["--isolation", "process", "--database", str(self.database)]
        command += ["--disable-runtime-dependency-installation"]
        if self.tls:
            command += ["--ssl-ca-certfile", self._tls("ca.crt"), "--ssl-certfile", self._tls("superlink.crt")]
            command += ["--ssl-keyfile", self._tls("superlink.key"), "--enable-supernode-auth"]
            command += ["--superexec-auth-secret-file", self._tls("superexec.secret")]
        else:
            command += ["--insecure"]
        return Program(name="superlink", command=command, restart_delay=_LINK_DELAY)

    def superexec(self) -> Program:
        """The program that starts the ServerApp; a process of its own, so that the ServerApp survives the SuperLink."""
        command = [*_command("flower-superexec"), "--runtime-api-address", self.address, *self._trust()]
        if self.tls:
            command += ["--superexec-auth-secret-file", self._tls("superexec.secret")]
        return Program(name="superexec", command=command, restart_delay=_LINK_DELAY)

    def supernode(self, client: int, *, address: str | None = None) -> Program:
        """A client; `address` where it reaches the SuperLink another way."""
        command = [sys.executable, str(SUPERNODE), "--superlink", address or self.address, *self._trust()]
        command += ["--port", str(self.node_ports[client]), "--node-config", self.node_config(client)]
        if self.tls:
            command += ["--auth-supernode-private-key", str(self.key(client))]
        return Program(name=f"supernode-{client}", command=command, restart_delay=_NODE_DELAY)

    def node_config(self, client: int) -> str:
        """The configuration of a node: which client it is and where it keeps its files."""
        words: dict[str, object] = {"partition-id": client, "state-dir": str(self.folder / "nodes" / str(client))}
        if root := os.environ.get("FEDGMR_DATA"):
            words["data-root"] = root
        return " ".join(f"{key}={_toml(value)}" for key, value in words.items())

    def key(self, client: int) -> Path:
        """A node's private key; the public one has `.pub` behind it."""
        return self.folder / "tls" / f"node-{client}"

    def flwr(self, verb: str, *words: str) -> list[str]:
        """A call of Flower's command line; its connection stands in the home."""
        return [*_command("flwr"), verb, *words]

    def _save(self) -> None:
        words = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_atomic(self.folder / _SITE, json.dumps(words) + "\n")
        trust = f"root-certificates = {_toml(self._tls('ca.crt'))}" if self.tls else "insecure = true"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        write_atomic(self.folder / "home" / "config.toml", f'{text}address = "{self.address}"\n{trust}\n')

    def _make_credentials(self) -> None:
        """Make certificates as `certificates.sh` of a written app does, and one key per node."""
        for tool in ("openssl", "ssh-keygen"):
            if shutil.which(tool) is None:
                raise SettingError(f"{tool} is not installed, which --tls needs: install it or leave --tls out.")
        _call(["sh", str(TEMPLATES / "certificates.sh"), str(self.folder / "tls"), "localhost"])
        for client in range(self.clients):
            _call(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", str(self.key(client))])

    def _trust(self) -> list[str]:
        return ["--root-certificates", self._tls("ca.crt")] if self.tls else ["--insecure"]

    def _tls(self, name: str) -> str:
        return str(self.folder / "tls" / name)


def check_flower() -> None:
    """SettingError where the extra is not installed, a warning where it is another release than the tested one."""
    folder = Path(sys.executable).parent
    missing = [name for name in _PROGRAMS if not (folder / name).exists() and shutil.which(name) is None]
    if missing:
        raise SettingError(f"{missing[0]} is not installed, which deployments need: pip install 'flwr>=1.41,<1.43'.")
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return  # on the path from elsewhere
    if not version.startswith(tuple(f"{release}." for release in _TESTED)):
        warnings.warn(f"flwr is {version}: deployments are tested with {' and '.join(_TESTED)}.", stacklevel=2)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now.

    Not those the system hands out for outgoing connections: while the SuperLink is down, a node that tries to reach
    it could be given the SuperLink's own port.
    """
    found: list[int] = []
    port = _FIRST_PORT + os.getpid() * 32 % _PORTS
    while len(found) < count:
        port = _FIRST_PORT + (port + 1 - _FIRST_PORT) % _PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        found.append(port)
    return found


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{command[0]} failed: {' '.join(done.stderr.split())[-400:]}")


def _toml(value: object) -> str:
    """A number or a text as TOML has it."""
    return json.dumps(value, ensure_ascii=False)


def _command(name: str) -> list[str]:
    """A program of the environment this process runs in, before one on the path."""
    beside = Path(sys.executable).parent / name
    return [str(beside) if beside.exists() else name]
