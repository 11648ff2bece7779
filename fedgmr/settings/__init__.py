"""Strict settings: plain data to dataclasses and back, files, overrides, refusals."""
