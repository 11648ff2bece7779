"""Sphinx's settings for the site, which fetches nothing from outside; `make_site.py` calls Sphinx."""

from sphinx.application import Sphinx

from building.api import plain_backticks
from fedgmr.version import __version__

project = "FedGMR"
author = "The FedGMR developers"
release = version = __version__
html_title = f"FedGMR {__version__}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False
toc_object_entries = False  # every name has a heading
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 100
napoleon_use_ivar = True


def setup(app: Sphinx) -> None:
    """Read docstrings as they are written."""
    app.connect("autodoc-process-docstring", plain_backticks, priority=100)
