"""The whole site, built by Sphinx with warnings as errors; `make test-docs` brings Sphinx along."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from building.contents import listed
from building.stage import place_of
from building.tree import ROOT

pytest.importorskip("sphinx")


@pytest.mark.slow
def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "make_site.py"), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stdout + done.stderr
    site = tmp_path / "site"
    pages = {path: (site / place_of(path).with_suffix(".html")).read_text() for path in listed()}
    assert len(re.findall(r'<div class="drawn">\s*<svg', pages[listed()[0]])) == 1
    assert "<!-- generated" not in "".join(pages.values())
    assert 'id="fedgmr.simulate"' in (site / "api.html").read_text()
    assert (site / "llms.txt").read_text().startswith("# FedGMR\n")
