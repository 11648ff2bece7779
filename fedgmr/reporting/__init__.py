"""Reporting: what a run left on disk, turned into figures, pages, tables and a progress line.

Nothing here takes part in a run: the functions read run directories (see `rundir`) and write beside them.
Importing this package stays cheap; the plotting library is loaded by the functions that draw.
Read `rundir` first, then `report` for one run and `comparison` for many.
"""

from fedgmr.reporting.comparison import Comparison, compare_runs, write_comparison
from fedgmr.reporting.display import Display
from fedgmr.reporting.report import write_report
from fedgmr.reporting.rundir import Run, read_run

__all__ = [
    "Comparison",
    "Display",
    "Run",
    "compare_runs",
    "read_run",
    "write_comparison",
    "write_report",
]
