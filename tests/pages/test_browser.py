"""The page in a real browser: a run that goes on, 50 long runs, hostile names, numbers by hand.

`make test-browser` runs these tests; they need Chromium (Debian: `apt-get install chromium`, or BROWSER=PROGRAM).
"""

import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from reporting.conftest import write_curve

from fedgmr.pages.page import page
from fedgmr.pages.report import page_with_data, write_report
from fedgmr.pages.server import PageServer
from pages.browser import Browser, find_browser
from pages.conftest import row

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
    settings = ("seconds=3000", "evaluation.every_seconds=40", "evaluation.trips=true", "checkpoint.every=10")
    settings += (f"output={run}",)
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
        browser.wait_for("fedgmr.page.runs.activity(fedgmr.page.runs.entries[0])?.rows >= seen.at(-1)")
        shown = browser.evaluate("fedgmr.page.runs.events.get(0).tasks.map(([client, , left]) => [client, left])")
        told = [trip for line in lines(metrics)[: shown_rows(browser)] for trip in json.loads(line)["trips"]]
        assert shown == [[trip[0], round(trip[2], 2)] for trip in told][: len(shown)]
        assert "moves up in" in browser.evaluate("document.querySelector('#clients thead').innerText")
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
                if number == 0:  # the one that is shown in detail
                    values["trips"] = [
                        [client, 0, seconds, seconds + 0.2, seconds + 0.5, seconds + 0.9, 1, 1] for client in range(10)
                    ]
                    values["rates"] = [[[draw.random() for _ in range(10)] for _ in range(2)] for _ in range(10)]
                file.write(json.dumps(values) + "\n")


def computed_seconds(browser: Browser) -> float:
    metrics = browser.ask("Performance.getMetrics")["metrics"]
    return float(next(entry["value"] for entry in metrics if entry["name"] == "TaskDuration"))


# By name, what the reader does, seven times each.
INTERACTIONS = {
    "zoom": "page.change({ zoom: [500 + 10 * time, 1500] })",
    "smooth": "page.change({ smoothing: 0.5 + time / 100 })",
    "hide": "page.change({ hidden: [page.runs.entries[time].name] })",
    "single runs": "page.change({ bands: time % 2 === 0 })",
    "logarithm": "page.change({ log: [time % 2 === 0, false] })",
    "axis": "page.change({ x: ['bytes', 'tick', 'seconds'][time % 3], zoom: null })",
    "sort": "page.change({ sort: ['best', '-best', 'rows'][time % 3] })",
    "map": "page.change({ map: [['seed', 'training.rate'][time % 2], ''] })",
    "other run": "page.change({ run: page.runs.entries[time % 2].name })",
    "hover": "page.charts[0].on.point(1000 + time, page.charts[0], 300)",
}


def test_fifty_long_runs_are_quick(browser: Browser, tmp_path: Path) -> None:
    write_long_runs(tmp_path, 50, 2000)
    with served(tmp_path) as address:
        browser.open(f"{address}#bands=0")
        browser.wait_for("fedgmr.page.runs.data.size === 50 && fedgmr.page.waiting === undefined", 300)
        browser.wait_for("fedgmr.page.runs.activity(fedgmr.page.runs.entries[0])?.clients.length === 10", 60)
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


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText.trim())"
    )
    return found


def test_what_clients_did_by_hand(browser: Browser, make_run: Any, write_rows: Any, tmp_path: Path) -> None:
    """Client 1 was at work for 30 of 60 seconds; client 0 lost a task of 35 and was away for another 10."""
    run = make_run(tmp_path / "run", 1)
    trips = [[1, 0, 0.0, 10.0, 12.5, 30.0, 9, 9], [0, 1, 5.0, 15.0, None, 40.0, 9, None]]
    rates = [[[1.0, 3.0], [0.5, 0.5]], [[8.0, 8.0], [4.0, 2.0]]]
    write_rows(
        run,
        [row(1, trips=trips, away=[[0, 40.0, 50.0]], rates=rates, checks_left=[3, None], bytes_server=600e6)],
        mode="a",
    )
    with served(run) as address:
        browser.open(address)
        browser.wait_for("document.querySelector('#clients thead')?.innerText.includes('waited')")
        head, cells = texts(browser, "#clients thead th"), texts(browser, "#clients tbody td")
        fast, slow = (dict(zip(head, cells[at : at + len(head)], strict=True)) for at in (0, len(head)))
        assert [fast[name] for name in ("client", "now", "waited", "lost", "moves up in", "last seen")] == [
            "1", "waiting since 30 s", "50 %", "0", "\u2013", "30 s",
        ]  # fmt: skip
        assert [slow[name] for name in ("client", "now", "waited", "lost", "moves up in", "down (MiB/s)")] == [
            "0", "waiting since 50 s", "25 %", "1", "3 checks", "3",
        ]  # fmt: skip
        assert browser.evaluate("fedgmr.page.runs.columns(fedgmr.page.runs.entries[0]).uplink") == [None, 10e6]
        told = browser.evaluate("[5, 11, 20, 40].map((time) => fedgmr.page.strips[1].words(1, time))")
        words = ["receiving a task", "training a task", "sending a task", "waiting"]
        assert [word in text for word, text in zip(words, told, strict=True)] == [True] * 4
        assert "from 0 s to 30 s; link 8 down, 4 up (MiB/s)" in told[0]
        lost, away = browser.evaluate("[20, 45].map((time) => fedgmr.page.strips[1].words(0, time))")
        assert ("lost (left) a task of level 1" in lost, "client 0: away" in away) == (True, True)


def test_the_page_of_a_fleet_whose_nodes_come_and_go(browser: Browser, make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    sent = {"event": "dispatched", "task": "a", "client": 1, "version": 0, "seconds": 2.0, "level": 1}
    journal = [{"event": "joined", "client": 1, "node": 7, "samples": 5, "seconds": 1.0}, sent]
    write_journal(run, journal)
    with served(run) as address:
        browser.open(address)
        browser.wait_for("document.querySelector('#clients tbody')?.innerText.includes('not connected')")
        assert "at work since 2 s" in texts(browser, "#clients tbody tr")[0]
        lost = {"event": "lost", "task": "a", "client": 1, "version": 0, "seconds": 150.0, "reason": HOSTILE}
        write_journal(run, [lost, {**journal[0], "client": 0, "seconds": 151.0}])
        browser.wait_for("!document.querySelector('#clients tbody').innerText.includes('not connected')", 4)
        assert f"lost a task at 150 s ({HOSTILE})" in texts(browser, "#clients tbody tr")[0]
        write_journal(run, [{**sent, "task": "b", "seconds": 160.0}])
        browser.wait_for("document.querySelector('#clients tbody').innerText.includes('at work since 160 s')", 4)
        assert browser.evaluate("document.querySelectorAll('img').length") == 0


def write_journal(run: Path, events: list[dict[str, Any]]) -> None:
    with (run / "updates.jsonl").open("a") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events))


def test_hostile_summaries_and_recipes_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    views = {name: {"accuracy": 0.5, "loss": 1.0, "validation": 0.4} for name in ("merged", HOSTILE)}
    fields = {
        "stand_in": HOSTILE,
        "status": HOSTILE,
        "task_title": HOSTILE,
        "device": HOSTILE,
        "views": views,
        "best_view": HOSTILE,
        "refused": {HOSTILE: 3},
        "events": [{"event": "recovered", "tick": HOSTILE, "to": 1, "reason": HOSTILE, "clients": [HOSTILE]}],
        "versions": {HOSTILE: HOSTILE},
    }
    run = write_curve(tmp_path / "run", {0.0: 0.1, 200.0: 0.8}, **fields)
    with (run / "recipe.yaml").open("a") as file:
        file.write(f"about: '{HOSTILE}</script>'\n")
    browser.open(write_report(run).as_uri())
    browser.wait_for("document.querySelector('#run details')")
    browser.evaluate("document.querySelector('#run details').open = true")
    browser.wait_for("document.querySelectorAll('#run details pre').length === 2")
    assert browser.evaluate("document.querySelectorAll('img, body script:not(#data):not([type=module])').length") == 0
    assert texts(browser, "#marks .notice") == [f"Stand-in data: {HOSTILE}."]
    assert HOSTILE in texts(browser, "#facts .notice")[0]
    assert f"about: '{HOSTILE}</script>'" in texts(browser, "#run details pre")[1]
    shown = browser.evaluate("document.querySelector('#run').innerText")
    assert f"{HOSTILE} (the best)" in shown
    assert f"went back to the model of tick 1 ({HOSTILE}); since then: {HOSTILE}" in shown


def test_a_sweep_has_a_table_a_map_and_links(browser: Browser, tmp_path: Path) -> None:
    """Rates 0.01 and 0.1 by patience 1 and 5, whose finals are 10, 20, 30 and 40 %; the first has two seeds."""
    cells = {(0.01, 1, 0): 0.05, (0.01, 1, 1): 0.15, (0.01, 5, 0): 0.2, (0.1, 1, 0): 0.3, (0.1, 5, 0): 0.4}
    for (rate, patience, seed), final in cells.items():
        name = f"rate-{rate}-patience-{patience}-{seed}"
        run = write_curve(tmp_path / "runs" / name, {0.0: 0.01, 200.0: final}, final_accuracy=final, seed=seed)
        method = f"{{name: fedgmr, title: FedGMR, patience: {patience}}}"
        (run / "recipe.yaml").write_text(f"seed: {seed}\nmethod: {method}\ntraining: {{rate: {rate}}}\n")
    browser.open(write_report(tmp_path / "runs").as_uri())
    browser.wait_for("fedgmr.page.runs.data.size === 5 && fedgmr.page.map.points?.length === 5")
    assert len(texts(browser, "#table tbody tr")) == 4
    assert texts(browser, "#table tbody tr")[0].split()[:6] == ["1", "0.01", "FedGMR", "2", "10.00", "±"]
    means = browser.evaluate(
        "[...fedgmr.page.map.cells()].map(([place, points]) =>"
        "[place, points.reduce((sum, { value }) => sum + value, 0) / points.length])"
    )
    assert dict(means) == pytest.approx({"0 0": 10.0, "1 0": 20.0, "0 1": 30.0, "1 1": 40.0})
    browser.evaluate("globalThis.files = []; URL.createObjectURL = (file) => (files.push(file), '#')")
    browser.evaluate("[...document.querySelectorAll('#map-tools button')].at(-1).click()")
    fills = set(re.findall(r'<path [^>]*fill="(.*?)"', browser.evaluate("files[0].text()")))
    # From #dbe8f2 for 5 % to #0a4a73 for 40 %, 1, 3, 5 and 7 sevenths of the way; few programs mix colours themselves.
    assert fills == {"#fff", "rgb(189,209,224)", "rgb(129,164,188)", "rgb(70,119,151)", "rgb(10,74,115)"}
    browser.evaluate("fedgmr.page.change({ map: ['training.rate', 'the metric'] })")
    browser.wait_for("fedgmr.page.map.up === undefined && location.hash.includes('map=')")
    assert browser.evaluate("fedgmr.page.map.across.texts") == ["0.01", "0.1"]
    links = browser.evaluate("[...document.querySelectorAll('#runs a')].map((each) => each.href)")
    assert len(links) == 5
    browser.open(links[0])
    browser.wait_for("fedgmr.page.runs.data.size === 1 && document.querySelector('#facts dd')")
    folder = os.environ.get("PICTURES")
    if folder:
        browser.open((tmp_path / "runs" / "report.html").as_uri())
        browser.picture(Path(folder) / "sweep.png")


def test_a_run_without_rows_is_shown_in_detail(browser: Browser, make_run: Any, tmp_path: Path) -> None:
    """It is not the run before it that stands there under its name."""
    make_run(tmp_path / "runs" / "a")
    empty = make_run(tmp_path / "runs" / "b", 0)
    with served(tmp_path / "runs") as address:
        browser.open(f"{address}#run=b")
        browser.wait_for("document.getElementById('clients-of').textContent === 'of b'")
        assert browser.evaluate("document.getElementById('chosen-run').value") == "b"
        facts = dict(zip(texts(browser, "#facts dt"), texts(browser, "#facts dd"), strict=True))
        assert facts == {"method": "FedGMR", "seed": "0"}
        assert texts(browser, "#clients tbody tr") == []
        browser.evaluate("fedgmr.page.change({ run: 'a' })")
        browser.wait_for("document.getElementById('clients-of').textContent === 'of a'")
        browser.evaluate("fedgmr.page.change({ run: 'b' })")
        browser.wait_for("document.getElementById('clients-of').textContent === 'of b'")
        (empty / "metrics.jsonl").write_text("nonsense\n")
        browser.wait_for("document.querySelector('#facts .notice')?.textContent.startsWith('Line 1 of metrics')", 4)


def test_metrics_of_several_tasks_keep_their_units(browser: Browser, make_run: Any, tmp_path: Path) -> None:
    reading = {"name": "MAE", "unit": "kWh", "higher_is_better": False, "digits": 1}
    for name, title, rows in (("a", "Begins", 0), ("b", "Digits", 3), ("c", "Houses", 0)):
        run = make_run(tmp_path / "runs" / name, rows, title=title)
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row(n, accuracy=4.0 - n, readings=[reading])) + "\n" for n in range(3))
    with served(tmp_path / "runs") as address:
        browser.open(address)
        browser.wait_for("fedgmr.page.runs.data.size === 2 && fedgmr.page.charts[0].lines.length === 2")
        head, cells = texts(browser, "#runs thead th"), texts(browser, "#runs tbody td")
        at, width = head.index("accuracy (%)"), len(head)
        assert [cells[place * width + at] for place in range(3)] == ["\u2013", "70.00", "MAE 2.0 kWh"]
        assert browser.evaluate("fedgmr.page.charts[0].names.y") == "accuracy (%), MAE (kWh)"
        browser.evaluate("document.querySelector('.plot').focus()")
        browser.press("End")
        told = browser.evaluate("document.querySelector('.hover').innerText")
        assert ("70.00 %" in told, "2.0 kWh" in told) == (True, True)
        # Around the last row, at 120 s: half the time on either side, and back by the same steps up to the whole.
        zooms = ("[90,120]", "[112.5,120]", "[105,120]", "[90,120]", "[60,120]", "null")
        for key, zoom in zip("++----", zooms, strict=True):
            browser.press(key)
            browser.wait_for(f"JSON.stringify(fedgmr.page.charts[0].zoom) === '{zoom}'", 2)


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


def test_the_terms_of_the_bound_are_shown(browser: Browser, make_run: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "page.html").write_text(page_with_data([run]))
    browser.open(f"{(tmp_path / 'page.html').as_uri()}#y=variance%2520factor%2520(theory)%2Closs")
    browser.wait_for("document.querySelector('#theory table')")
    told = browser.evaluate("document.getElementById('theory').innerText")
    # One client at density 0.5, one whole: 1/4 x 0.5 + 1 = 1.125 against 1/2 with whole models.
    assert "variance factor is 2.2 times" in told
    assert "variance factor\t1.125\t0.5\t" in told
    assert "0.5 to 1\t\u22120.25\t\u22120.625\t\u22120.25" in told
    drawn = browser.evaluate("document.querySelector('.chart select').selectedOptions[0].text")
    assert drawn == "variance factor (theory)"
