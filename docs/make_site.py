"""Builds the documentation's site: `python docs/make_site.py FOLDER`, or `make docs`.

First everything that Sphinx reads is put together beside the site (`building/stage.py`), then Sphinx makes pages of it,
with warnings as errors, and then every link of the result is followed (`building/check.py`).
"""

import sys
from pathlib import Path

import sphinx
from sphinx.cmd.build import main as run_sphinx

from building.api import python_reference
from building.assistants import llms_text
from building.check import faults
from building.commands import command_reference
from building.notebooks import as_markdown, raw_html
from building.stage import Stage
from building.tree import ROOT
from figures.style import svg_of

ABOUT = (
    "Federated learning in PyTorch for fleets whose clients have very different bandwidth: nested sub-models, gradual "
    "model restoration, one loop for simulated and real fleets."
)
GENERATED = {"commands": command_reference, "python": python_reference}


def build(site: Path) -> int:
    """Build the site into a folder; returns the exit code."""
    source = site.with_name(f"{site.name}-source")
    made = {
        "figure": lambda name: raw_html(svg_of(name), "drawn"),
        "generated": lambda name: GENERATED[name](),
    }
    Stage(source, made).fill(as_markdown)
    strict = ["-W", "--keep-going", "-q", "-E", "-a"]
    if code := int(run_sphinx([*strict, "-b", "html", "-c", str(ROOT / "docs"), str(source), str(site)])):
        return code
    (site / "llms.txt").write_text(llms_text(ABOUT))
    wrong = list(faults(site))
    print("\n".join(wrong or [f"{site / 'index.html'} (Sphinx {sphinx.__version__}); every link within it holds."]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]).absolute()))
