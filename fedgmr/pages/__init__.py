"""PAGES: runs in a browser, while they go on or in one file afterwards.

Nothing here takes part in a run, and nothing is written into a run directory. Read `columns`, then `watched`, then
`server` for the live page and `report` for the file.
"""
