"""Markup from templates: every value is escaped unless it is `Markup` already.

The page of runs (`pages/page.py`) and the pages of the paper's tables (`paper/page.py`) are made with it.
"""

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(folder: str, name: str, **values: Any) -> str:
    """Fill in a template of the package; a value that it names and that is not given is an error."""
    return _environment(folder).get_template(name).render(**values)


@lru_cache
def _environment(folder: str) -> Environment:
    loader = PackageLoader("fedgmr", folder)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
