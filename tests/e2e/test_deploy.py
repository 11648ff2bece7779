"""`fedgmr deploy local` as a command, and the folder of `deploy init` with nothing but Flower's own commands.

Minutes each; run with `make test-slow` where the extra `flower` is installed.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from e2e.command import spawn
from e2e.doors import nginx
from fedgmr.deploy.app import write_project
from fedgmr.deploy.pace import pace_for_machines
from fedgmr.deploy.processes import Program, Supervisor, marked_processes
from fedgmr.deploy.site import free_ports
from fedgmr.recipe import load_recipe

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent


def wait_for(what: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.2)


def ticks(run: Path) -> int:
    path = run / "updates.jsonl"
    return path.read_text().count('"event": "tick"') if path.exists() else 0


def remains(run: Path) -> list[int]:
    return list(marked_processes((run / "flower").absolute()))


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    """The README's command: it finishes, learns, and leaves no process behind."""
    process = spawn("deploy", "local", "quickstart", "--clients", "4", "--output", "run", folder=tmp_path)
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["clients"] == 4
    assert summary["final_accuracy"] > 0.5
    assert out == f"Final accuracy {100 * summary['final_accuracy']:.2f} %. Report: run/report.html\n"
    assert "FedGMR" in (tmp_path / "run" / "report.html").read_text()
    assert remains(tmp_path / "run") == []
    assert sorted(path.name for path in (tmp_path / "run" / "flower").iterdir()) == ["logs"]
    assert "--token ... " in summary["versions"]["command"]


def test_where_all_clients_diverge_the_run_has_diverged(tmp_path: Path) -> None:
    words = ["seconds=60", "training.learning_rate=1e9", "method.coordination.period=10", "--clients", "2"]
    process = spawn("deploy", "local", "quickstart", *words, "--output", "run", folder=tmp_path)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (3, ""), err
    assert "the updates of 2 of 2 clients are out of bounds" in err.splitlines()[-1]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "diverged"
    assert remains(tmp_path / "run") == []


def test_interrupted_and_resumed(tmp_path: Path) -> None:
    words = ["seconds=80", "method.coordination.period=10", "--clients", "2", "--output", "run"]
    process = spawn("deploy", "local", "quickstart", *words, folder=tmp_path)
    run = tmp_path / "run"
    wait_for(lambda: ticks(run) >= 4, 300)  # the third after tick 0
    assert len(remains(run)) >= 6
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    last = err.splitlines()[-1]
    assert last.startswith("fedgmr: interrupted; the fleet was stopped; `")
    assert last.endswith(" -m fedgmr deploy --resume run` goes on from the last checkpoint.")
    assert remains(run) == []

    done = spawn("deploy", "--resume", "run", folder=tmp_path)
    out, err = done.communicate(timeout=600)
    assert done.returncode == 0, err
    events = [json.loads(line) for line in (run / "updates.jsonl").read_text().splitlines()]
    (resumed,) = [e for e in events if e["event"] == "resumed"]
    assert resumed["tick"] >= 2
    assert [e["tick"] for e in events if e["event"] == "tick"] == list(range(9))  # none twice, none missing
    assert remains(run) == []


def test_a_killed_command_leaves_nothing(tmp_path: Path) -> None:
    process = spawn(
        "deploy", "local", "quickstart", "seconds=300", "--clients", "2", "--output", "run", folder=tmp_path
    )
    run = tmp_path / "run"
    wait_for(lambda: ticks(run) >= 1, 300)
    process.kill()
    process.communicate()
    wait_for(lambda: remains(run) == [], 120)


def test_a_bad_recipe_is_one_sentence(tmp_path: Path) -> None:
    """It can only be seen by the ServerApp: the density is not on the ladder."""
    words = ["fleet.densities=[0.3,0.3]", "seconds=60", "--clients", "2", "--output", "run"]
    process = spawn("deploy", "local", "quickstart", *words, folder=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, ""), err
    assert "Traceback" not in err
    assert "The density 0.3 is not on the ladder" in err.splitlines()[-1]
    assert remains(tmp_path / "run") == []


class Written:
    """A folder of `deploy init`, its README's commands with this machine's ports and paths."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.app, self.tls = folder, folder / "fleet", folder / "tls"
        recipe = load_recipe("quickstart", ["fleet.clients=2", "deployment.identity=node"])
        write_project(self.app, pace_for_machines(recipe, []))
        subprocess.run(["sh", "certificates.sh", str(self.tls), "superlink.example.org"], cwd=self.app, check=True)
        self.port, *self.ports, self.door = free_ports(5)
        (folder / "home").mkdir()
        config = re.findall(r"```toml\n(.*?)```", (self.app / "README.md").read_text(), re.DOTALL)[0]
        (folder / "home" / "config.toml").write_text(
            config.replace(":8000", f":{self.port}").replace("/etc/fedgmr/tls", str(self.tls))
        )
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }

    def command(self, program: str, **changes: str) -> list[str]:
        """The command the README shows for a program."""
        text = (self.app / "README.md").read_text().replace("\\\n", " ")
        line = next(line for line in text.splitlines() if line.startswith(f"{program} "))
        line = line.replace("superlink.example.org:8443", f"127.0.0.1:{self.port}").replace("8000", str(self.port))
        line = line.replace("tls/", f"{self.tls}/").replace(" ca.crt", f" {self.tls}/ca.crt")
        for old, new in changes.items():
            line = line.replace(old, new)
        return shlex.split(line, comments=True)

    def node(self, number: int) -> list[str]:
        """A SuperNode with a new key."""
        key = self.folder / f"node-{number}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
        config = f'partition-id={min(number, 1)} state-dir="{self.folder}/state-{number}"'
        command = self.command("flower-supernode")
        command[command.index("--auth-supernode-private-key") + 1] = str(key)
        command[command.index("--node-config") + 1] = config
        return [*command, "--port", str(self.ports[number])]


def test_a_written_app_runs_with_plain_flower_and_refuses_strangers(tmp_path: Path) -> None:
    site = Written(tmp_path)
    run = tmp_path / "first"
    with Supervisor(tmp_path, tmp_path, site.environment) as crew:

        def keep(name: str, command: list[str]) -> None:
            crew.start(Program(name=name, command=command, restart_delay=5.0))

        def flwr(*words: str) -> str:
            return subprocess.run(
                ["flwr", *words], cwd=site.app, env=site.environment, check=True, capture_output=True, text=True
            ).stdout

        keep("superlink", site.command("flower-superlink"))
        wait_for(lambda: "Uvicorn running" in (tmp_path / "superlink.log").read_text(), 60)
        keep("superexec", site.command("flower-superexec"))
        nodes = [site.node(number) for number in range(3)]
        for number in (0, 1):  # the third is never registered
            flwr("supernode", "register", str(tmp_path / f"node-{number}.pub"), "fleet")
        for number, command in enumerate(nodes):
            keep(f"node-{number}", command)
        answer = flwr("run", ".", "fleet", "-c", f'output="{run}" overrides="seconds=45"', "--format", "json")
        run_id = json.loads(answer)["run-id"]

        deaths: list[str] = []

        def ended() -> bool:
            deaths.extend(crew.check())
            return (run / "summary.json").exists()

        wait_for(ended, 400)

        def status() -> str:
            runs = json.loads(flwr("list", "fleet", "--run-id", run_id, "--format", "json"))["runs"]
            return str(runs[0]["status"])

        wait_for(lambda: status() == "finished:completed", 60)
        assert set(deaths) == {"node-2"}  # refused again and again
        assert len(deaths) > 1
    events = [json.loads(line) for line in (run / "updates.jsonl").read_text().splitlines()]
    assert sorted(e["client"] for e in events if e["event"] == "joined") == [0, 1]
    assert {e["client"] for e in events if e["event"] == "accepted"} == {0, 1}
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert "SuperNode ID" not in (tmp_path / "node-2.log").read_text()
    assert "SuperNode ID" in (tmp_path / "node-1.log").read_text()


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_the_written_proxy_lets_nodes_in_and_nobody_else(tmp_path: Path) -> None:
    site = Written(tmp_path)
    door = site.door
    with Supervisor(tmp_path, tmp_path, site.environment) as crew:
        crew.start(Program(name="superlink", command=site.command("flower-superlink"), restart_delay=600.0))
        crew.start(nginx(tmp_path, door=door, port=site.port, tls=site.tls))
        wait_for(lambda: "Uvicorn running" in (tmp_path / "superlink.log").read_text(), 60)
        node = [word.replace(str(site.port), str(door)) for word in site.node(0)]

        def flwr(*words: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                ["flwr", *words], cwd=site.app, env=site.environment, capture_output=True, text=True, check=False
            )

        assert flwr("supernode", "register", str(tmp_path / "node-0.pub"), "fleet").returncode == 0
        crew.start(Program(name="node", command=node, restart_delay=600.0))
        wait_for(lambda: "SuperNode ID" in (tmp_path / "node.log").read_text(), 60)
        assert "online" in flwr("supernode", "list", "fleet").stdout

        # The same commands through the door.
        config = tmp_path / "home" / "config.toml"
        config.write_text(config.read_text().replace(str(site.port), str(door)))
        assert flwr("supernode", "list", "fleet").returncode != 0
        assert flwr("run", ".", "fleet").returncode != 0
        assert crew.check() == []
