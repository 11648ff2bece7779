"""Lives and deaths of processes, with programs of a few lines: nothing outlives its supervisor."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgmr.deploy import processes
from fedgmr.deploy.app import SUPERNODE
from fedgmr.deploy.processes import Program, Supervisor, end_marked, marked_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="marks are found in /proc")

# Writes its process id into a file, then sleeps.
SLEEPER = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"
# The same, deaf to the polite signals.
DEAF = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (15, 2, 1)]; " + SLEEPER
# Starts a sleeper in a session of its own, then becomes one itself.
PARENT = (
    "import subprocess, sys; "
    f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}, sys.argv[1] + '.child'], start_new_session=True); " + SLEEPER
)
# Supervises a parent; is going to be killed.
SUPERVISING = (
    "import sys, time; from pathlib import Path; from fedgmr.deploy.processes import Program, Supervisor; "
    "folder = Path(sys.argv[1]); crew = Supervisor(folder, folder, {}); "
    f"crew.start(Program(name='p', command=[sys.executable, '-c', {SLEEPER!r}, str(folder / 'p')], restart_delay=0)); "
    "time.sleep(600)"
)


def program(folder: Path, code: str = SLEEPER, *, name: str = "p", delay: float = 0.0) -> Program:
    return Program(name=name, command=[sys.executable, "-c", code, str(folder / name)], restart_delay=delay)


def crew_in(folder: Path) -> Supervisor:
    return Supervisor(folder, folder, dict(os.environ))


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_what_dies_is_started_again_after_its_delay(tmp_path: Path) -> None:
    with crew_in(tmp_path) as crew:
        crew.start(program(tmp_path, delay=0.2))
        wait_for(lambda: len(pids(tmp_path / "p")) == 1)
        assert crew.check() == []
        os.kill(pids(tmp_path / "p")[0], signal.SIGKILL)
        wait_for(lambda: not alive(pids(tmp_path / "p")[0]))
        assert crew.check() == ["p"]  # told once
        assert crew.check() == []
        assert len(pids(tmp_path / "p")) == 1  # not before the delay is over

        def again() -> bool:
            crew.check()
            return len(pids(tmp_path / "p")) == 2

        wait_for(again)
        first, second = pids(tmp_path / "p")
        assert first != second
    assert not alive(second)


def test_the_end_reaches_the_deaf_and_those_who_left_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgmr.deploy.processes._GRACE", 0.5)
    with crew_in(tmp_path) as crew:
        crew.start(program(tmp_path, DEAF, name="deaf"))
        crew.start(program(tmp_path, PARENT, name="parent"))
        files = [tmp_path / name for name in ("deaf", "parent", "parent.child")]
        wait_for(lambda: all(len(pids(file)) == 1 for file in files))
        started = {pid for file in files for pid in pids(file)}
        assert set(marked_processes(tmp_path)) == started
        assert marked_processes(tmp_path)[pids(files[0])[0]][2] == DEAF
    assert not any(alive(pid) for pid in started)
    assert marked_processes(tmp_path) == {}


def test_orphans_of_a_killed_program_are_ended_with_its_group(tmp_path: Path) -> None:
    in_group = PARENT.replace(", start_new_session=True", "")
    with crew_in(tmp_path) as crew:
        crew.start(program(tmp_path, in_group, delay=600))
        wait_for(lambda: len(pids(tmp_path / "p")) == len(pids(tmp_path / "p.child")) == 1)
        os.kill(pids(tmp_path / "p")[0], signal.SIGKILL)
        wait_for(lambda: crew.check() == ["p"])
        wait_for(lambda: not alive(pids(tmp_path / "p.child")[0]))


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with crew_in(tmp_path / "a") as ours, crew_in(tmp_path / "b") as theirs:
        ours.start(program(tmp_path / "a"))
        theirs.start(program(tmp_path / "b"))
        wait_for(lambda: bool(pids(tmp_path / "a" / "p") and pids(tmp_path / "b" / "p")))
        end_marked(tmp_path / "a")
        wait_for(lambda: not alive(pids(tmp_path / "a" / "p")[0]))
        assert alive(pids(tmp_path / "b" / "p")[0])


def test_a_killed_supervisor_takes_its_programs_along(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SUPERVISING, str(tmp_path)])
    try:
        wait_for(lambda: len(pids(tmp_path / "p")) == 1)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not alive(pids(tmp_path / "p")[0]))


def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with crew_in(tmp_path):
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_programs_run_where_they_are_told(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with Supervisor(tmp_path, tmp_path, dict(os.environ), cwd=tmp_path / "here") as crew:
        crew.start(program(tmp_path, "import os; print(os.getcwd(), flush=True)", delay=600))
        wait_for(lambda: (tmp_path / "p.log").read_text() == f"{tmp_path / 'here'}\n")


def test_calls_return_output_or_raise_last_words(tmp_path: Path) -> None:
    crew = crew_in(tmp_path)
    assert crew.call([sys.executable, "-c", "print(6 * 7)"], timeout=60) == "42\n"
    with pytest.raises(ValueError, match=r"failed: .*no such luck"):
        crew.call([sys.executable, "-c", "import sys; sys.exit('no such luck')"], timeout=60)
    with pytest.raises(ValueError, match=r"did not end within 0.1 s"):
        crew.call([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return", 1),
        ("raise OSError", 1),
        ("threading.Thread(target=int, args='x').start(); wait()", 1),
        ("exit(7)", 7),
    ],
)
def test_a_supernode_without_its_superlink_ends(body: str, code: int, tmp_path: Path) -> None:
    """In place of Flower's, a program that leaves a thread behind which would keep its process alive."""
    package = tmp_path / "flwr" / "supernode"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    last = "    threading.Thread(target=wait, daemon=False).start()\n" if code == 1 else ""
    (package / "cli.py").write_text(
        "import threading, time\nfrom sys import exit\ndef wait():\n    time.sleep(600)\n"
        f"def flower_supernode():\n{last}    {body}\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(SUPERNODE)], env=environment, timeout=60, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("lost its SuperLink" in done.stderr) == (code == 1)


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    with crew_in(tmp_path) as crew:
        crew.start(program(tmp_path, "print('hello', flush=True)", delay=600))
        wait_for(lambda: (tmp_path / "p.log").read_text() == "hello\n")


def test_a_long_log_is_put_aside_while_its_program_writes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LARGEST_LOG", 1000)
    code = "import sys, time\nfor n in range(10**6): print(f'{n:09d}', flush=True); time.sleep(0.001)"
    with crew_in(tmp_path) as crew:
        crew.start(program(tmp_path, code))
        log, earlier = tmp_path / "p.log", tmp_path / "p.earlier.log"
        wait_for(lambda: log.stat().st_size >= 1000)
        crew.check()
        wait_for(lambda: log.stat().st_size >= 100)
        assert earlier.stat().st_size >= 1000
        assert earlier.read_text().startswith("000000000\n000000001\n")
        first = int(log.read_text().split()[0])
        assert first >= len(earlier.read_text().split()), "what was put aside is not written again, and no gap of zeros"
