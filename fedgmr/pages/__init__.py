"""PAGES: runs in a browser, while they go on or in one file afterwards.

Nothing here takes part in a run; of a run directory only `report.html` is written. Read `columns`, then `watched` and
`watch`, then `server` for the live page and `report` for the file.
"""
