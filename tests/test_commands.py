"""Every command that the documents print is run here in a short form, or stands below with where it is run or why not.

Commands are the lines of shell blocks and the code in tables. What is not run still has to be understood: its words by
the parser, its recipe with all settings by the code that runs it. A command that nobody has thought of is run as it is.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedgmr.cli.arguments import RecipeWords
from fedgmr.cli.main import main, make_parser
from fedgmr.experiments.estimate import Estimate
from fedgmr.experiments.sweep import PlannedRun, grid_points
from fedgmr.recipe import read_recipe_data

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),  # which tells of commands that were
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "examples" / "README.md",
        ROOT / "benchmarks" / "README.md",
    ]
)
SHELL = re.compile(r"^```(?:sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = ("fedgmr", "python", "make", "pip", "flwr", "sh")

# By the beginning of a command: who runs it, or why nobody does.
ELSEWHERE = {
    "make ": "sets up an environment; its targets are what the continuous integration runs",
    ". .venv/bin/activate": "sets a shell up",
    "pip install": "fetches packages",
    "cd ": "the next line says what is run there",
    'eval "$(fedgmr completion bash)"': "tests/cli/test_completion.py evaluates it in a shell",
    "export FEDGMR_DATA=": "sets a variable",
    "python examples/": "tests/test_docs.py runs the examples",
    "fedgmr data --download": "fetches data; tests/tasks/test_formats.py does so from files",
    "fedgmr run paper/": "needs the paper's data",
    "fedgmr run shakespeare": "needs data that `fedgmr data --download` fetches",
    "fedgmr run quickstart 'fleet.trace={kind: file, down: lte.csv}'": "tests/e2e/test_traces.py runs trace files",
    "fedgmr sweep paper/": "needs the paper's data, a GPU or a Ray cluster",
    "fedgmr table baselines": "needs the paper's data and hours; tests/e2e/test_tables.py makes a table of a tiny task",
    "fedgmr table ablation": "needs the paper's data; tests/e2e/test_tables.py plans a table of a tiny task",
    "fedgmr table ims-cost": "tests/paper/test_computed.py computes it",
    "fedgmr results": "reads all kept runs and draws them; tests/paper/test_results.py writes the document of a few",
    "fedgmr watch": "serves until Ctrl-C; tests/pages/test_server.py ends it so",
    "fedgmr model RUN --level 0.2 --to onnx": "tests/experiments/test_onnx.py, with the package",
    "fedgmr model runs/first --level 0.2 --to onnx": "tests/experiments/test_onnx.py, with the package",
    "fedgmr export RUN --to tensorboard": "tests/trackers, with the packages",
    "fedgmr export runs/first --to tensorboard": "tests/trackers, with the packages",
    "fedgmr export runs/first --to mlflow": "tests/trackers, with the packages",
    "fedgmr export runs/compared --to wandb": "tests/trackers, with the packages",
    "fedgmr deploy local": "starts a fleet; tests/e2e/test_deploy.py does",
    "fedgmr deploy --resume": "starts a fleet; tests/e2e/test_deploy.py does",
    "sh certificates.sh": "tests/deploy/test_app.py makes certificates with it",
    "flower-": "tests/e2e/test_deploy.py starts Flower's programs, with TLS too",
    "ssh-keygen": "tests/deploy/test_site.py makes such keys",
    "flwr ": "needs a fleet of machines",
}
SHORT = ("seconds=10", "evaluation.test_samples=100", "evaluation.views=merged")
FEWER = ("--seeds", "1", "--jobs", "1")
PLACES = {"RUN": "runs/first", "DIR": "folder", "F": "figure.png", "TASK": "mnist5k", "RECIPE": "quickstart"}


def printed(document: Path) -> Iterator[str]:
    """The commands of a document, without comments; a line that ends with a backslash goes on."""
    text = document.read_text(encoding="utf-8")
    for block in SHELL.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield " ".join(re.sub(r"(^|\s)#.*", "", line).split())
    for row in re.findall(r"^\|.*\|$", FENCE.sub("", text), re.MULTILINE):
        yield from (code for code in re.findall(r"`([^`]+)`", row) if code.split()[0] in PROGRAMS and " " in code)


def commands() -> list[str]:
    found = dict.fromkeys(command for path in DOCUMENTS for command in printed(path) if command)
    return [re.sub(r"^python -m fedgmr", "fedgmr", command) for command in found]


def elsewhere(command: str) -> str | None:
    return next((reason for beginning, reason in ELSEWHERE.items() if command.startswith(beginning)), None)


def words_of(command: str) -> list[str]:
    """The arguments of a command of this package, with real things in the places of names in capitals."""
    program, *words = shlex.split(command.partition(" > ")[0])
    assert program == "fedgmr", f"{command}: run it here, or say in ELSEWHERE who does, or why nobody does"
    places = PLACES | {"RUN": "runs/road"} if words[:1] == ["trace"] else PLACES
    return [places.get(word, word) for word in words]


def _unknown(runs: Sequence[PlannedRun], *_: object, **__: object) -> Estimate:
    return Estimate(seconds=dict.fromkeys((run.name for run in runs), None), timed=False)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs for commands that read some: one, one with trips, a comparison, a sweep, and one that was interrupted."""
    place = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setitem(sys.modules, "matplotlib", None)
        patch.setattr("fedgmr.cli.duration.estimate_runs", _unknown)
        assert main(["run", "quickstart", *SHORT, "output=runs/first"]) == 0
        assert main(["run", "quickstart", *SHORT, "evaluation.trips=true", "output=runs/road"]) == 0
    for copy in ("compared/fedgmr-seed3", "sweep/one", "cut"):
        shutil.copytree(place / "runs" / "first", place / "runs" / copy)
    for name in ("summary.json", "model.safetensors"):
        (place / "runs" / "cut" / name).unlink()
    return place


@pytest.mark.parametrize("command", [command for command in commands() if elsewhere(command) is None])
def test_it_runs(
    command: str, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *words = words_of(command)
    monkeypatch.chdir(tmp_path)
    # Trials take longer than these runs; tests/experiments/test_estimate.py makes them.
    monkeypatch.setattr("fedgmr.cli.duration.estimate_runs", _unknown)
    if not {"--figure", "--figures"} & set(words):
        monkeypatch.setitem(sys.modules, "matplotlib", None)  # reports take longer than these runs
    if verb in ("run", "compare", "demo", "sweep"):
        words += SHORT
    if verb in ("compare", "demo", "sweep"):
        words += FEWER if "all" not in words else (*FEWER, "--methods", "fedgmr,fiarse+aux+gmr")
    elif verb not in ("run", "show", "list", "deploy"):
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    if verb == "resume":
        words = ["runs/cut" if word == "runs/first" else word for word in words]
    if verb == "trace" and words[0] == "show":
        assert main(["trace", "make", "drive", "--seconds", "60", "--output", words[1]]) == 0
    assert main([verb, *words]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("fedgmr ")])
def test_it_is_understood_with_its_recipe(command: str) -> None:
    verb, *words = words_of(command)
    given, rest = make_parser().parse_known_args([verb, *words])
    assert not [word for word in rest if word.startswith("-")]
    if verb not in ("run", "compare", "sweep", "show"):
        return
    recipe = RecipeWords.read([*given.recipe, *rest])
    methods = getattr(given, "methods", None)
    points = grid_points(
        read_recipe_data(recipe.source),
        recipe.overrides,
        axes=getattr(given, "grid", ()),
        methods=methods.split(",") if methods else (),
        seeds=getattr(given, "seeds", 1),
    )
    assert points


def test_what_is_run_elsewhere_is_printed_and_run_there() -> None:
    found = commands()
    assert [beginning for beginning in ELSEWHERE if not any(line.startswith(beginning) for line in found)] == []
    named = {path for reason in ELSEWHERE.values() for path in re.findall(r"tests/[\w/.]+", reason)}
    assert [path for path in sorted(named) if not (ROOT / path.rstrip(".")).exists()] == []


def test_commands_are_found() -> None:
    found = commands()
    assert len(found) > 60
    assert "fedgmr sweep quickstart --grid training.steps=5,10 --jobs 2" in found, "in a table"
    assert "fedgmr run quickstart task=own_task:two_moons seconds=600" in found, "by python -m"
    assert any(line.startswith("flower-superlink") and "--enable-supernode-auth" in line for line in found), "in lines"
