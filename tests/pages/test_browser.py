"""The page in a real browser: a run that goes on, 50 long runs, hostile names, numbers by hand.

`make test-browser` runs these tests; they need Chromium (Debian: `apt-get install chromium`, or BROWSER=PROGRAM).
"""

import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedgmr.pages.page import page
from fedgmr.pages.report import page_with_data
from fedgmr.pages.server import PageServer
from pages.browser import Browser, find_browser

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
HOSTILE = "<img src=x onerror=alert(1)>"
HERE = ("http://127.0.0.1:", "file:///", "data:,", "about:blank")
EMPTY = json.dumps({"state": {"title": "none", "made": "0", "runs": []}, "columns": {}})


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        assert "BROWSER" not in os.environ, "BROWSER names no program that is here"
        pytest.skip("needs Chromium")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(autouse=True)
def calm(browser: Browser) -> Iterator[None]:
    """No test leaves an error, a warning or a request to anywhere but this machine's page."""
    browser.complaints.clear()
    browser.requests.clear()
    yield
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(HERE)] == []


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a live page."""
    with PageServer([directory]) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server.address
        server.shutdown()


@contextmanager
def going_on(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of fedgmr in a process of its own, killed at the end."""
    command = [sys.executable, "-m", "fedgmr", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


def shown_rows(browser: Browser) -> int:
    return int(browser.evaluate("fedgmr.page.runs.rows(fedgmr.page.runs.entries[0])"))


def test_a_live_run_killed_and_resumed(browser: Browser, tmp_path: Path) -> None:
    run = tmp_path / "run"
    metrics = run / "metrics.jsonl"
    settings = ("seconds=3000", "evaluation.every_seconds=40", "checkpoint.every=10", f"output={run}")
    with served(tmp_path) as address, going_on("run", "quickstart", *settings) as process:
        wait_until(lambda: len(lines(metrics)) >= 2)
        browser.open(address)
        browser.evaluate(
            "globalThis.seen = []; const draw = fedgmr.page.draw; fedgmr.page.draw = function () { draw.call(this);"
            "seen.push(this.runs.columns(this.runs.entries[0]).seconds?.length ?? 0) }"
        )
        assert longest_wait(browser, metrics, rows=8) < 2.0
        assert browser.evaluate("fedgmr.page.runs.entries[0].status") == "running"
        wait_until(lambda: any((run / "checkpoints").glob("*")))
        process.kill()
        process.wait()
        browser.wait_for("fedgmr.page.runs.entries[0].status === 'interrupted'")
        with going_on("resume", str(run)):
            browser.wait_for("fedgmr.page.runs.entries[0].status === 'running'", 60)
            assert longest_wait(browser, metrics, rows=len(lines(metrics)) + 4) < 2.0
        seen = browser.evaluate("seen")
        assert len(seen) > 5
        assert seen == sorted(seen)  # never fewer rows than before, so no line became shorter
        hover_reads_the_last_row(browser, metrics)
        assert all(url.startswith(address) for url in browser.requests if url.startswith("http"))


def wait_until(true: Any, seconds: float = 90.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def longest_wait(browser: Browser, metrics: Path, rows: int) -> float:
    """Seconds from when a row was in the file until the page had it, the longest of all until there are so many."""
    longest = 0.0
    while (shown := shown_rows(browser)) < rows:
        wait_until(lambda shown=shown: len(lines(metrics)) > shown)
        start = time.monotonic()
        wait_until(lambda shown=shown: shown_rows(browser) > shown)
        longest = max(longest, time.monotonic() - start)
    return longest


def hover_reads_the_last_row(browser: Browser, metrics: Path) -> None:
    count = shown_rows(browser)
    left, top, width, height = browser.evaluate(
        "(() => { const area = document.querySelector('.plot').getBoundingClientRect();"
        "return [area.left, area.top, area.width, area.height] })()"
    )
    browser.mouse("mouseMoved", left + width - 20, top + height / 2)
    browser.wait_for("!document.querySelector('.hover').hidden")
    row = json.loads(lines(metrics)[count - 1])
    text = browser.evaluate("document.querySelector('.hover').innerText")
    assert f"row {count - 1}" in text
    assert f"{100 * row['accuracy']:.2f} %" in text


def write_long_runs(directory: Path, runs: int, rows: int) -> None:
    """Runs of ten clients that are evaluated at times of their own, five seeds of each learning rate."""
    for number in range(runs):
        draw, seconds, path = random.Random(number), 0.0, directory / f"run-{number:02}"
        path.mkdir(parents=True)
        rate, seed = 0.01 * (1 + number // 5), number % 5
        method = "{name: fedgmr, title: FedGMR, ladder: [0.1, 0.5, 1.0]}"
        recipe = f"name: long\nseed: {seed}\nseconds: 4000.0\nmethod: {method}\ntraining: {{rate: {rate}}}\n"
        (path / "recipe.yaml").write_text(recipe)
        with (path / "metrics.jsonl").open("w") as file:
            for row in range(rows):
                seconds += 1 + draw.random()
                level = [min(2, (row + 300 * client) // 1500) for client in range(10)]
                values = {
                    "seconds": seconds,
                    "tick": row,
                    "accuracy": 0.9 - 0.8 * math.exp(-rate * seconds / 30) + draw.gauss(0, 0.01),
                    "loss": 2.3 * math.exp(-seconds / 900) + abs(draw.gauss(0, 0.01)),
                    "level": level,
                    "density": [(0.1, 0.5, 1.0)[each] for each in level],
                    "staleness": [row % 3] * 10,
                    "updates": [row] * 10,
                    "bytes_down": [1000 * row] * 10,
                    "bytes_up": [900 * row] * 10,
                    "bytes_server": 2000 * row,
                    "in_flight": 10,
                    "wall": 0.1 * row,
                }
                file.write(json.dumps(values) + "\n")


def computed_seconds(browser: Browser) -> float:
    metrics = browser.ask("Performance.getMetrics")["metrics"]
    return float(next(entry["value"] for entry in metrics if entry["name"] == "TaskDuration"))


# By name, what the reader does, seven times each.
INTERACTIONS = {
    "zoom": "page.change({ zoom: [500 + 10 * time, 1500] })",
    "smooth": "page.change({ smoothing: 0.5 + time / 100 })",
    "hide": "page.hide([page.runs.entries[time].name])",
    "single runs": "page.change({ bands: time % 2 === 0 })",
    "logarithm": "page.change({ log: [time % 2 === 0, false] })",
    "axis": "page.change({ x: ['bytes', 'tick', 'seconds'][time % 3], zoom: null })",
    "sort": "page.change({ sort: ['best', '-best', 'rows'][time % 3] })",
    "hover": "page.charts[0].on.point(1000 + time, page.charts[0], 300)",
}


def test_fifty_long_runs_are_quick(browser: Browser, tmp_path: Path) -> None:
    write_long_runs(tmp_path, 50, 2000)
    with served(tmp_path) as address:
        browser.open(f"{address}#bands=0")
        browser.wait_for("fedgmr.page.runs.data.size === 50 && fedgmr.page.waiting === undefined", 120)
        assert browser.ask("Runtime.getHeapUsage")["usedSize"] < 200e6
        # The time that the page's thread computes, so that other work on this machine does not count.
        browser.ask("Performance.enable", timeDomain="threadTicks")
        for name, act in INTERACTIONS.items():
            before = computed_seconds(browser)
            browser.evaluate(
                f"(async () => {{ const {{ page }} = fedgmr; for (let time = 0; time < 7; time += 1) {{ {act};"
                "await new Promise((done) => requestAnimationFrame(() => setTimeout(done))) } })()"
            )
            assert (computed_seconds(browser) - before) / 7 < 0.1, name
        folder = os.environ.get("PICTURES")
        if folder:
            browser.picture(Path(folder) / "fifty.png")


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_report_with_hostile_names_fits_every_screen(
    width: int, dark: bool, browser: Browser, make_run: Any, tmp_path: Path
) -> None:
    for seed in range(2):
        make_run(tmp_path / "runs" / f"{HOSTILE}{seed}".replace("/", ""), seed=seed, title=f"'{HOSTILE}'")
    file = tmp_path / "report.html"
    file.write_text(page_with_data([tmp_path / "runs"]))
    browser.open(file.as_uri(), width=width, dark=dark)
    browser.wait_for("fedgmr.page.runs.data.size === 2 && document.querySelector('#clients tbody tr')")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    names = browser.evaluate("[...document.querySelectorAll('#runs .name')].map((each) => each.textContent)")
    assert sorted(names) == [f"{HOSTILE}0", f"{HOSTILE}1"]
    # The mean of two equal runs is 70 % in row 2; the faster client stands first.
    cells = browser.evaluate("[...document.querySelectorAll('#clients tbody td')].map((each) => each.textContent)")
    assert cells[:10] == ["1", "8", "4", "1", "1", "6", "2", "8.00 kB", "4.00 kB", "120 s"]
    browser.evaluate("document.querySelector('.plot').focus()")
    browser.press("End")
    assert "70.00 ± 0.00 %" in browser.evaluate("document.querySelector('.hover').innerText")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    folder = os.environ.get("PICTURES")
    if folder:
        browser.picture(Path(folder) / f"{width}-{'dark' if dark else 'light'}.png")


def test_numbers_by_hand(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page("none", EMPTY))
    browser.ask("Page.navigate", url=file.as_uri())
    browser.wait_for("globalThis.fedgmr?.page.runs.state")
    mean = browser.evaluate(
        "fedgmr.averaged([{ x: [0, 10, 20], y: [1, 2, 3] }, { x: [0, 10, 20, 30], y: [3, 4, 9, 9] }])"
    )
    root = math.sqrt(2)
    assert (mean["x"], mean["y"], mean["end"]) == ([0, 10, 20], [2, 3, 6], 20)
    assert mean["spread"] == pytest.approx([root, root, 3 * root])
    # A diverged run does not shorten the mean: its last value stands.
    mean = browser.evaluate(
        "fedgmr.averaged([{ x: [0, 10], y: [1, 2], ended: true }, { x: [0, 10, 20], y: [3, 4, 8] }])"
    )
    assert (mean["x"], mean["y"]) == ([0, 10, 20], [2, 3, 5])
    assert browser.evaluate("fedgmr.smoothed([0, 10, 10], 0.5)") == pytest.approx([0, 20 / 3, 60 / 7])
    assert browser.evaluate("fedgmr.smoothed([0, 10], 0)") == [0, 10]
    assert browser.evaluate("fedgmr.ticks([0, 100], 5)") == {"values": [0, 20, 40, 60, 80, 100], "step": 20}
    address = "#x=tick&y=loss%2Cview%2520padded&smooth=0.5&zoom=1%2C2&hidden=a%252Cb&run=c"
    assert browser.evaluate(f"fedgmr.viewOf({address!r}).hidden") == ["a,b"]
    assert browser.evaluate(f"fedgmr.fragmentOf(fedgmr.viewOf({address!r}))") == address
    csv = browser.evaluate(
        "fedgmr.csvOf({ columns: () => ({ seconds: [0, 60], loss: [2.5, null] }), rows: () => 2 },"
        "[{ name: '=1+1', method: 'a,\"b\"', seed: 3 }])"
    )
    head, *rows = csv.splitlines()
    assert head == "run,method,seed,row,seconds,loss"
    assert rows == ['\'=1+1,"a,""b""",3,0,0,2.5', '\'=1+1,"a,""b""",3,1,60,']
