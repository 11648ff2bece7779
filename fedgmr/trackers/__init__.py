"""TRACKERS: run directories read while or after they are written, and handed on to other programs.

Nothing here takes part in a run. Read `exporting` first; each target has a file of its own.
"""
