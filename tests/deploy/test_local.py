"""A local fleet's watch over its run, with what Flower's command line answers; no program is started."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedgmr.deploy import local
from fedgmr.deploy.local import LocalFleet, resume_local
from fedgmr.deploy.processes import Supervisor
from fedgmr.deploy.site import Site
from fedgmr.settings.refusals import SettingError

AWAY = {"success": False, "error-message": "Using SuperLink: fleet\n\nConnection to the SuperLink is unavailable."}


class Answers(Supervisor):
    """Answers the calls of `flwr` one by one; its exit code is 0 whatever it says as JSON."""

    def __init__(self, folder: Path, *answers: dict[str, Any] | str) -> None:
        super().__init__(folder, folder, {})
        self.answers, self.calls = list(answers), list[list[str]]()

    def call(self, command: Sequence[str], *, timeout: float) -> str:
        self.calls.append(list(command[1:]))
        answer = self.answers.pop(0)
        return answer if isinstance(answer, str) else json.dumps(answer)


class Time:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(local, "time", clock)
    return clock


def fleet(run: Path, *answers: dict[str, Any] | str) -> tuple[LocalFleet, Answers, list[str]]:
    (run / "flower").mkdir(parents=True)
    site = Site(folder=run / "flower", clients=1, tls=False, port=20001, node_ports=(20002,))
    supervisor, notes = Answers(site.folder, *answers), list[str]()
    return LocalFleet(site, run, supervisor, notes.append), supervisor, notes


def test_a_superlink_that_is_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ServerApp was killed together with the SuperLink: the run goes on, though its state is told late."""
    started = [{"success": True, "run-id": str(number)} for number in (7, 8)]
    going = {"success": True, "runs": [{"status": "running"}]}
    crew, supervisor, notes = fleet(tmp_path, AWAY, started[0], AWAY, AWAY, going, "stopped", started[1])
    lives = iter([True, False])

    def alive() -> bool:
        if supervisor.answers:
            return next(lives, False)
        (tmp_path / "summary.json").write_text('{"status": "finished"}')
        return False

    monkeypatch.setattr(crew, "_server_app_lives", alive)
    assert crew.run_to_its_end(lambda run: None) == {"status": "finished"}
    assert [call[0] for call in supervisor.calls] == ["run", "run", "list", "list", "list", "stop", "run"]
    assert notes == ["the ServerApp was killed; the run goes on from its checkpoint"]


def test_what_flower_refuses_for_a_minute_is_one_sentence(tmp_path: Path, time: Time) -> None:
    crew, _, _ = fleet(tmp_path, *[{"success": False, "error-message": "Invalid\n  app."}] * 200)
    with pytest.raises(ValueError, match=r"^flwr run failed: Invalid app\.$"):
        crew.run_to_its_end(lambda run: None)
    assert time.now == 60.5


def test_a_run_that_has_ended_is_not_resumed(tmp_path: Path) -> None:
    """Its fleet is gone: `finished` is told by `open_run`, and how the others ended here."""
    (tmp_path / "recipe.yaml").write_text('{"task": "quickstart", "method": "fedavg", "seconds": 9}')
    (tmp_path / "summary.json").write_text('{"status": "diverged", "clock": "real"}')
    with pytest.raises(SettingError, match="has ended as diverged: start a new one"):
        resume_local(tmp_path, follow=lambda run: None, notify=lambda event: None)
