"""Reporting: the files of runs turned into figures and tables, and a live display of runs that go on.

Nothing here takes part in a run: the functions read run directories (see `records`) and write beside them.
Importing this package stays cheap; the plotting library is loaded by the functions that draw.
Read `records` first, then `plots` for one run, `comparison` for many, `display` for the terminal.
"""

from fedgmr.reporting.comparison import Comparison, compare_runs
from fedgmr.reporting.display import Display
from fedgmr.reporting.records import Run, read_run

__all__ = ["Comparison", "Display", "Run", "compare_runs", "read_run"]
